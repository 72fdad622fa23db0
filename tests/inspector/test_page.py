"""The inspector's page in a real Chromium, as a file and live; nothing goes to another host or to the console."""

import contextlib
import threading
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect
from tokenizers import Tokenizer, models, pre_tokenizers

from ade.errors import InputError
from ade.inspector.page import EXAMPLES, page
from ade.inspector.reading import Inspector
from ade.settings import ServiceSettings
from ade.trained_model import Classifier
from tests.conftest import PATIENT, WORDS, ragged_codebook
from tests.inspector.conftest import CHROMIUM, ONE, TWO, served, token, until, visiting
from tests.models import random_model
from tests.service.conftest import running
from tests.test_explanation import with_ngrams

BOTH = pytest.mark.parametrize("kind", ["file", "live"])
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")
MINUS = "\u2212"


@pytest.fixture
def written(browser, tmp_path):
    """The page of an inspector and some texts, as a file."""

    @contextlib.contextmanager
    def opened(inspector: Inspector, *texts: str, **changes: object):
        data = {"about": inspector.about(), "readings": [{**inspector.read(text), **changes} for text in texts]}
        (tmp_path / "page.html").write_text(page(data), "utf8")
        with visiting(browser, (tmp_path / "page.html").as_uri()) as tab:
            yield tab

    return opened


def rows(tab: Page) -> dict[int, list[float]]:
    """Each anchor shown, and how long its bars are, signed; all of the same scale."""
    drawn = tab.evaluate(
        """() => [...document.querySelectorAll(".anchor")].map(row => {
          for (const each of row.querySelectorAll(".bar")) each.style.transition = "none";
          const box = row.querySelector(".bars").getBoundingClientRect();
          const zero = box.left + box.width * row.querySelector(".bars").style.getPropertyValue("--zero");
          const bars = [...row.querySelectorAll(".bar")].map(bar => bar.getBoundingClientRect());
          return [Number(row.dataset.anchor), bars.map(bar => (bar.left + bar.width / 2 < zero ? -1 : 1) * bar.width)];
        })"""
    )
    return dict(drawn)


def to_scale(drawn: dict[int, list[float]], expected: dict[int, list[float]]) -> None:
    """The bars are as long as the numbers are large."""
    assert list(drawn) == list(expected)
    longest = max(abs(value) for values in expected.values() for value in values)
    widest = max(abs(value) for values in drawn.values() for value in values)
    for anchor, values in expected.items():
        assert [bar / widest for bar in drawn[anchor]] == pytest.approx([v / longest for v in values], abs=0.03)


def shows(tab: Page, expected: dict[int, list[float]]) -> None:
    """The page gets to show these bars; before that it may show those of an earlier text."""

    def drawn() -> bool:
        try:
            to_scale(rows(tab), expected)
        except AssertionError:
            return False
        return True

    until(tab, drawn)


def over(scores: list[float], i: int, values: list[float]) -> float:
    """What values add to the margin of label i over the most probable other one."""
    j = max((each for each in range(len(scores)) if each != i), key=lambda each: scores[each])
    return values[i] - values[j]


def uses(reading: dict, word: str, label: str | None = None) -> dict[int, list[float]]:
    """What each anchor of a word adds to the margin of a label, that which adds or takes most first."""
    at = reading["explanation"]["labels"].index(label or reading["label"])
    scores = reading["explanation"]["scores"]
    own = next(each for each in reading["tokens"] if each["token"] == word)
    adds = {use["anchor"]: [over(scores, at, use["adds"])] for use in own["anchors"]}
    return dict(sorted(adds.items(), key=lambda each: -abs(each[1][0])))


def shown(value: float, digits: int = 2) -> str:
    return "0" if abs(value) < 0.005 else f"{MINUS if value < 0 else '+'}{abs(value):.{digits}f}"


def test_typing_shows_bars_that_follow_the_context(visit, inspector):
    with visit("live", "bank") as tab:
        expect(tab.locator("#wordtitle")).to_have_text("bank")
        alone = inspector.read("bank")
        shows(tab, uses(alone, "bank"))  # once the answers to the page's own examples have been replaced
        tab.locator("#one").press("End")
        tab.keyboard.type(" rocket planet")
        expect(tab.locator(".token")).to_have_count(3)
        now = inspector.read("bank rocket planet")
        shows(tab, uses(now, "bank"))
        assert uses(now, "bank") != uses(alone, "bank")
        expect(tab.locator(".verdict").first).to_contain_text(f"{100 * max(now['probabilities'].values()):.1f}%")
        names = tab.locator(".probabilities .name").all_text_contents()[:3]
        assert names == sorted(WORDS, key=now["probabilities"].get, reverse=True)


@BOTH
def test_an_anchor_opens_with_its_words_and_its_place(kind, visit, inspector):
    def where(anchor: dict) -> dict[str, float]:
        size = tab.locator("#map svg").bounding_box()
        return {"x": 14 + anchor["x"] * (size["width"] - 28), "y": 14 + anchor["y"] * (size["height"] - 28)}

    with visit(kind, ONE) as tab:
        about, reading = inspector.about(), inspector.read(ONE)
        token(tab, "team").click()
        first = next(iter(uses(reading, "team")))
        tab.locator(".anchor").first.click()
        detail = tab.locator("#detail")
        expect(detail.get_by_role("heading")).to_have_text(f"Anchor {first}")
        for word in about["anchors"][first]["words"]:
            expect(detail.locator(".near")).to_contain_text(word)
        tokens = [each["token"] for each in reading["tokens"] if first in [use["anchor"] for use in each["anchors"]]]
        assert [chip.split()[0] for chip in detail.locator(".chip").all_text_contents()] == tokens
        ring = tab.locator("#map .ring").evaluate("dot => ({x: dot.cx.baseVal.value, y: dot.cy.baseVal.value})")
        assert ring == pytest.approx(where(about["anchors"][first]), abs=1)
        other = next(number for number in range(10) if number not in uses(reading, "team"))
        tab.locator("#map").hover(position=where(about["anchors"][other]))
        expect(tab.locator(".tip")).to_have_text(f"{other}: {', '.join(about['anchors'][other]['words'][:6])}")
        tab.locator("#map").click(position=where(about["anchors"][other]))
        expect(detail.get_by_role("heading")).to_have_text(f"Anchor {other}")
        tab.keyboard.press("Escape")
        expect(detail).to_be_hidden()


@BOTH
def test_two_sentences_are_compared(kind, visit, inspector):
    with visit(kind, ONE, TWO) as tab:
        one, two = inspector.read(ONE), inspector.read(TWO)
        for side, reading in enumerate((one, two)):
            expect(tab.locator(".verdict").nth(side)).to_contain_text(reading["label"])
        assert sorted(tab.locator("#common .chip").all_text_contents()) == ["bank", "of", "the"]
        tab.locator("#common").get_by_role("button", name="bank", exact=True).click()
        for side in (0, 1):
            expect(token(tab, "bank", side)).to_have_attribute("aria-selected", "true")
        first, second = uses(one, "bank"), uses(two, "bank", one["label"])  # both for the label of the first
        expected = {anchor: [*first[anchor], *second[anchor]] for anchor in first}
        order = sorted(expected, key=lambda anchor: -abs(expected[anchor][1] - expected[anchor][0]))
        to_scale(rows(tab), {anchor: expected[anchor] for anchor in order})
        tab.get_by_role("option", name="team,").click()  # a word the other sentence has not
        assert {len(bars) for bars in rows(tab).values()} == {1}


@BOTH
def test_attention_is_shown_pair_by_pair(kind, visit, inspector):
    with visit(kind, ONE) as tab:
        attention = inspector.read(ONE)["attention"]
        token(tab, "bank").click()
        canvas = tab.locator(".heat canvas")
        canvas.focus()
        canvas.press("ArrowRight")
        expect(tab.locator(".readout")).to_have_text(f"“bank” attends {100 * attention[1][0]:.1f}% to “the”")
        strongest = sorted(attention[1], reverse=True)[:4]
        listed = tab.locator(".attended > div").first.locator(".num").all_text_contents()
        assert listed == [f"{100 * share:.1f}%" for share in strongest]
        box = canvas.bounding_box()
        canvas.click(position={"x": box["width"] * 0.6, "y": box["height"] - 8})  # the last row
        expect(tab.locator("#wordtitle")).to_have_text("team")


def test_words_and_anchors_are_shown_by_what_they_add_to_any_label(written):
    model, text = with_ngrams(), "w3 w1 w4 w9 w5"
    explanation, reading = model.explain(text), Inspector(model).read(text)
    script = """all => all.map(each => [each.querySelector(".word").textContent,
        each.getAttribute("aria-label").split(", adds ")[1].split(",")[0], each.className])"""
    kinds = set()
    with written(Inspector(model), text) as tab:
        for i, label in enumerate(explanation.names):
            tab.locator(".probabilities").get_by_role("button", name=label, exact=True).click()
            shown_words = tab.locator(".token").evaluate_all(script)
            for (word, adds, classes), own in zip(shown_words, explanation.words, strict=True):
                value = over(explanation.scores, i, own.total)
                kind = "" if shown(value) == "0" else "takes" if value < 0 else "adds"
                assert (word, adds, kind in ("", *classes.split())) == (own.text, shown(value), True)
                kinds.add(kind)
            margin = explanation.margin(label)
            expect(tab.locator(".sum")).to_contain_text(f"Margin {margin.value:.2f}")
            adds = [adds for _, adds in margin.ngrams]
            strongest = sorted(adds, key=abs, reverse=True)[:6]
            assert tab.locator(".ngrams .num").all_text_contents() == [shown(value) for value in strongest]
            for at, each in enumerate(reading["tokens"]):
                tab.locator(".token").nth(at).click()
                for use in each["anchors"]:
                    value = over(explanation.scores, i, use["adds"])
                    digits = 3 if abs(value) < 0.0995 else 2
                    amount = f"{MINUS if value < 0 else '+'}{abs(value):.{digits}f}"
                    row = tab.locator(f".anchor[data-anchor='{use['anchor']}']")
                    expect(row.locator(".now")).to_have_text(amount)
    assert kinds >= {"adds", "takes"}


def test_words_not_pieces(written):
    """A tokenizer that splits `wading` and `longlegged` into pieces."""
    vocabulary = ["[UNK]", "wad", "##ing", "bird", "long", "##leg", "##ged", "a"]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    saved = random_model(ragged_codebook([2] * len(vocabulary), dim=32).table.normalised())
    made, text = Inspector(Classifier(replace(saved, tokenizer=tokenizer))), "a longlegged wading bird"
    with written(made, text, "wading bird") as tab:
        assert tab.locator(".sentence").first.locator(".word").all_text_contents() == text.split()
        assert sorted(tab.locator("#common .chip").all_text_contents()) == ["bird", "wading"]
        token(tab, "longlegged").click()
        pieces = [each.split("\u201c")[1].strip("\u201d") for each in tab.locator(".piece").all_text_contents()]
        assert pieces == ["long", "leg", "ged"]
        expect(tab.locator(".anchor")).to_have_count(6)
        summed = sum(made.read(text)["attention"][0][4:6])  # from `a` to both pieces of `wading`
        canvas = tab.locator(".heat canvas").first
        canvas.focus()
        for key in ("ArrowRight", "ArrowUp", "ArrowRight", "ArrowRight"):
            canvas.press(key)
        expect(tab.locator(".readout").first).to_have_text(f"“a” attends {100 * summed:.1f}% to “wading”")


@pytest.mark.parametrize(
    ("config", "said"),
    [({}, "by its anchors"), ({"sat": False}, "by its anchors"), ({"attend": "anchors"}, "what it took from others"),
     ({"layers": 2}, "these are their weights"), ({"labels": 1}, "by its anchors")],
)  # fmt: skip
def test_every_kind_of_model_has_a_page(config, said, written):
    made = Inspector(Classifier(random_model(**config)))
    with written(made, "w3 w1 w4", "w3 w5") as tab:
        expect(tab.locator("#said")).to_contain_text(said)
        expect(tab.locator("#attention")).to_be_visible(visible=config.get("sat", True))
        assert {len(bars) for bars in rows(tab).values()} == {1 if "layers" in config else 2}
        if "labels" in config:
            expect(tab.locator(".sum").first).to_contain_text(f"Number {made.classifier.predict('w3 w1 w4').label:.2f}")


@pytest.mark.parametrize(("label", "text"), [(["a", "b"], "a + b"), ([], "none of the labels")])
def test_several_labels_or_none_of_them(label, text, inspector, written):
    with written(inspector, ONE, label=label) as tab:
        expect(tab.locator(".verdict")).to_have_text(text)


def test_a_text_longer_than_attention_reads_says_so(written):
    with written(Inspector(Classifier(random_model(max_tokens=4, lexicon=True))), "w1 w2 w3 w4 w5", "w1 w2") as tab:
        expect(tab.locator(".truncated")).to_have_count(1)  # the first sentence alone
        expect(tab.locator(".truncated")).to_contain_text("first 4 tokens")
        token(tab, "w5").click()  # part of the label, and coloured, but not read by attention
        expect(tab.locator("#wordfacts")).to_contain_text("Its anchors are not shown")


def test_what_the_service_refuses_is_said_in_a_line(visit):
    with visit("live", ONE, errors=("422",)) as tab:
        tab.locator("#one").fill("bank " * 5000)
        error = tab.locator("#error")
        expect(error).to_contain_text("20000 characters")
        assert error.bounding_box()["height"] < 60
        expect(tab.locator(".token")).to_have_count(5)  # what was there stays
        tab.locator("#one").fill("bank market")
        expect(tab.locator(".token")).to_have_count(2)
        expect(error).to_be_hidden()


def test_a_service_that_went_away_is_said(browser, folder, inspector):
    with running(served(folder, inspector), ServiceSettings()) as address:
        tab = browser.new_context().new_page()
        tab.goto(address)
        expect(tab.locator("#results")).to_be_visible()
    tab.locator("#one").fill("bank market")
    expect(tab.locator("#error")).to_have_text("The service does not respond.")
    tab.context.close()


def test_late_answers_are_dropped(visit):
    """The first question is answered after the second: the second's answer stays."""
    with visit("live", ONE, errors=("ERR_ABORTED", "ERR_FAILED")) as tab:
        held = []
        tab.route(
            "**/inspect", lambda route: held.append(route) if "coach" in route.request.post_data else route.continue_()
        )
        tab.locator("#one").fill("the coach")
        until(tab, lambda: len(held) == 1)
        tab.locator("#one").fill("lunar probe orbit")
        expect(tab.locator(".token")).to_have_count(3)
        with contextlib.suppress(Exception):
            held[0].continue_()
        tab.evaluate("() => new Promise(requestAnimationFrame)")  # whatever it does with the answer is done
        expect(tab.locator(".token")).to_have_count(3)
        expect(tab.locator("#error")).to_be_hidden()


def test_a_refused_request_is_tried_again(browser, address):
    with visiting(browser, f"{address}/#a=rocket", errors=("503",)) as tab:
        expect(tab.locator(".token")).to_have_count(1)
        refused = []

        def refuse_once(route) -> None:
            if refused:
                route.continue_()
                return
            refused.append(route)
            route.fulfill(status=503, headers={"retry-after": "1"}, json={"detail": "too many"})

        tab.route("**/inspect", refuse_once)
        tab.locator("#one").fill("lunar probe orbit")
        expect(tab.locator("#status")).to_contain_text("trying again")
        expect(tab.locator(".token")).to_have_count(3)
        expect(tab.locator("#status")).to_have_text("")


def test_the_first_result_needs_no_map_and_a_missing_one_is_said(browser, folder, inspector):
    go, works = threading.Event(), [True]

    class Late(Inspector):
        def about(self):
            assert go.wait(PATIENT)
            if not works[0]:
                raise InputError("there is no map")
            return super().about()

    for works[0], errors in ((True, ()), (False, ("422",))):
        go.clear()
        with running(served(folder, Late(inspector.classifier)), ServiceSettings()) as address:
            try:
                with visiting(browser, f"{address}/#a=the+bank+of+the+team", errors=errors) as tab:
                    expect(tab.locator(".token")).to_have_count(5)
                    expect(tab.locator("#preparing")).to_be_visible()
                    token(tab, "bank").click()  # it can be used meanwhile
                    expect(token(tab, "bank")).to_have_attribute("aria-selected", "true")
                    go.set()
                    expect(tab.locator("#preparing")).to_be_hidden()
                    if works[0]:
                        expect(tab.locator("#wordtitle")).to_have_text("bank")
                    else:
                        expect(tab.locator("#error")).to_have_text("there is no map")
            finally:
                go.set()


def test_it_opens_on_an_example_or_on_what_a_link_says(browser, address):
    with visiting(browser, address) as tab:
        for field, text in zip(("#one", "#two"), EXAMPLES["bank"], strict=True):
            expect(tab.locator(field)).to_have_value(text)
        expect(tab.locator("#results")).to_be_visible()
        tab.locator("[data-example='spring']").click()
        expect(tab.get_by_role("button", name="spring", exact=True)).to_have_attribute("aria-pressed", "true")
        tab.locator("#one").fill("lunar probe")
        tab.locator("#two").fill("")
        expect(tab.locator(".sentence")).to_have_count(1)
        link = tab.url
    with visiting(browser, link) as tab:
        expect(tab.locator("#one")).to_have_value("lunar probe")
        expect(tab.locator(".token")).to_have_count(2)
        tab.evaluate("location.hash = '#b=the+coach'")  # another link, in the page that is open
        expect(tab.locator("#one")).to_have_value("")
        expect(token(tab, "coach")).to_be_visible()
        tab.locator("#two").fill(" ")  # an empty field has no result
        expect(tab.locator("#results")).to_be_hidden()
        expect(tab.locator("#error")).to_be_hidden()
        link = tab.url
    with visiting(browser, link) as tab:  # nothing, not the example
        expect(tab.locator("#loading")).to_be_hidden()
        expect(tab.locator("#results")).to_be_hidden()
