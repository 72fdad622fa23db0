"""The inspector's page in a real Chromium, as a file and live; nothing goes to another host or to the console."""

import contextlib

import pytest
from playwright.sync_api import Page, expect

from ade.classifier import Classifier
from ade.inspector.page import EXAMPLES, page
from ade.inspector.reading import Inspector
from ade.model import AdeForSequenceClassification
from ade.runtime.runtime import Runtime
from ade.settings import Architecture, ServiceSettings
from tests.conftest import WORDS
from tests.inspector.conftest import CHROMIUM, ONE, TWO, token, until, visiting
from tests.service.test_app import running

BOTH = pytest.mark.parametrize("kind", ["file", "live"])
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")


def rows(tab: Page) -> dict[int, list[float]]:
    """Each anchor shown, and how long its bars are, signed; all of the same scale."""
    found = tab.evaluate(
        """() => [...document.querySelectorAll(".anchor")].map(row => {
          for (const each of row.querySelectorAll(".bar")) each.style.transition = "none";
          const box = row.querySelector(".bars").getBoundingClientRect();
          const zero = box.left + box.width * row.querySelector(".bars").style.getPropertyValue("--zero");
          const bars = [...row.querySelectorAll(".bar")].map(bar => bar.getBoundingClientRect());
          return [Number(row.dataset.anchor), bars.map(bar => (bar.left + bar.width / 2 < zero ? -1 : 1) * bar.width)];
        })"""
    )
    return dict(found)


def to_scale(drawn: dict[int, list[float]], expected: dict[int, list[float]]) -> None:
    """The bars are as long as the weights are large."""
    assert list(drawn) == list(expected)
    longest = max(abs(value) for values in expected.values() for value in values)
    widest = max(abs(value) for values in drawn.values() for value in values)
    for anchor, values in expected.items():
        assert [bar / widest for bar in drawn[anchor]] == pytest.approx([v / longest for v in values], abs=0.03)


def uses(reading: dict, word: str) -> dict[int, list[float]]:
    (own,) = [each for each in reading["tokens"] if each["token"] == word][:1]
    return {use["anchor"]: [use["weight"], use["in_context"]] for use in own["anchors"]}


def test_typing_shows_bars_that_follow_the_context(visit, inspector):
    with visit("live", "bank") as tab:
        expect(tab.locator("#wordtitle")).to_have_text("bank")
        alone = inspector.read("bank")
        to_scale(rows(tab), uses(alone, "bank"))
        expect(tab.locator(".verdict").first).to_contain_text(alone["label"])
        tab.locator("#one").press("End")
        tab.keyboard.type(" rocket planet")
        expect(tab.locator(".token")).to_have_count(3)
        now = inspector.read("bank rocket planet")
        expect(tab.locator("#wordtitle")).to_have_text("bank")
        to_scale(rows(tab), uses(now, "bank"))
        assert uses(now, "bank") != uses(alone, "bank")
        expect(tab.locator(".verdict").first).to_contain_text(f"{100 * max(now['probabilities'].values()):.1f}%")
        names = tab.locator(".probabilities .name").all_text_contents()[:3]
        assert names == sorted(WORDS, key=now["probabilities"].get, reverse=True)
        assert max(tab.locator(".amount").evaluate_all("all => all.map(each => each.scrollHeight)")) < 20  # one line
        for each in now["tokens"]:
            name = token(tab, each["token"]).get_attribute("aria-label")
            assert name.startswith(f"{each['token']}, adds ")
            assert name.endswith(f", pooling weight {pct(each['share'])}")


def pct(share: float) -> str:
    return f"{100 * share:.{1 if share < 0.0995 else 0}f}%"


@BOTH
def test_an_anchor_opens_with_its_words_and_its_place(kind, visit, inspector):
    with visit(kind, ONE) as tab:
        about, reading = inspector.about(), inspector.read(ONE)
        token(tab, "team").click()
        first = next(iter(uses(reading, "team")))
        tab.locator(".anchor").first.click()
        detail = tab.locator("#detail")
        expect(detail.get_by_role("heading")).to_have_text(f"Anchor {first}")
        expect(detail.locator(".near")).to_have_text(
            "Nearest words: " + "  ".join(split(about["anchors"][first]["words"]))
        )
        users = [each["token"] for each in reading["tokens"] if first in [use["anchor"] for use in each["anchors"]]]
        assert [chip.split()[0] for chip in detail.locator(".chip").all_text_contents()] == users
        assert place_of(tab, ".ring") == pytest.approx(where(tab, about["anchors"][first]), abs=1)
        other = next(number for number in range(10) if number not in uses(reading, "team"))
        x, y = where(tab, about["anchors"][other])
        tab.locator("#map").click(position={"x": x, "y": y})
        expect(detail.get_by_role("heading")).to_have_text(f"Anchor {other}")
        tab.keyboard.press("Escape")
        expect(detail).to_be_hidden()
        expect(tab.locator(".ring")).to_have_count(0)


def split(words: list[str]) -> list[str]:
    return [words[0], ", ".join(words[1:])] if len(words) > 1 else words


def where(tab: Page, anchor: dict) -> tuple[float, float]:
    size = tab.locator("#map svg").bounding_box()
    return 14 + anchor["x"] * (size["width"] - 28), 14 + anchor["y"] * (size["height"] - 28)


def place_of(tab: Page, dot: str) -> tuple[float, float]:
    return tuple(tab.locator(f"#map {dot}").evaluate("dot => [dot.cx.baseVal.value, dot.cy.baseVal.value]"))


def test_the_map_tells_the_words_under_the_pointer(visit, inspector):
    with visit("file", ONE) as tab:
        anchor = inspector.about()["anchors"][3]
        x, y = where(tab, anchor)
        tab.locator("#map").hover(position={"x": x, "y": y})
        expect(tab.locator(".tip")).to_have_text(f"3: {', '.join(anchor['words'][:6])}")
        tab.locator("h1").hover()
        expect(tab.locator(".tip")).to_have_count(0)


@BOTH
def test_two_sentences_are_compared(kind, visit, inspector):
    with visit(kind, ONE, TWO) as tab:
        one, two = inspector.read(ONE), inspector.read(TWO)
        for side, reading in enumerate((one, two)):
            expect(tab.locator(".verdict").nth(side)).to_contain_text(reading["label"])
        chips = tab.locator("#common .chip")
        assert sorted(chips.all_text_contents()) == ["bank", "of", "the"]
        tab.locator("#common").get_by_role("button", name="bank", exact=True).click()
        for side in (0, 1):
            expect(token(tab, "bank", side)).to_have_attribute("aria-selected", "true")
        first, second = uses(one, "bank"), uses(two, "bank")
        expected = {anchor: [*first[anchor], second[anchor][1]] for anchor in first}
        order = sorted(expected, key=lambda anchor: -abs(expected[anchor][2] - expected[anchor][1]))
        to_scale(rows(tab), {anchor: expected[anchor] for anchor in order})
        most = expected[order[0]]
        moved = most[2] / most[1] - 1
        way = "weaker" if moved < 0 else "stronger"
        expect(tab.locator(".anchor .delta").first).to_contain_text(f"{abs(100 * moved):.0f}% {way}")
        expect(tab.locator("#legend")).to_contain_text("in the second")
        tab.get_by_role("option", name="team,").click()  # a word the other sentence has not
        expect(tab.locator("#legend")).not_to_contain_text("in the second")
        assert {len(bars) for bars in rows(tab).values()} == {2}


@BOTH
def test_attention_is_shown_pair_by_pair(kind, visit, inspector):
    with visit(kind, ONE) as tab:
        attention = inspector.read(ONE)["attention"]
        token(tab, "bank").click()
        canvas = tab.locator(".heat canvas")
        canvas.focus()
        canvas.press("ArrowRight")
        expect(tab.locator(".readout")).to_have_text(f"“bank” attends {100 * attention[1][0]:.1f}% to “the”")
        canvas.press("ArrowDown")
        canvas.press("ArrowRight")
        expect(tab.locator(".readout")).to_have_text(f"“of” attends {100 * attention[2][1]:.1f}% to “bank”")
        strongest = sorted(attention[1], reverse=True)[:4]
        shown = tab.locator(".attended > div").first.locator(".num").all_text_contents()
        assert shown == [f"{100 * share:.1f}%" for share in strongest]
        box = canvas.bounding_box()
        canvas.click(position={"x": box["width"] * 0.6, "y": box["height"] - 8})  # the last row
        expect(tab.locator("#wordtitle")).to_have_text("team")
        dark = tab.evaluate(
            """() => { const canvas = document.querySelector(".heat canvas");
            const bytes = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(bytes).size; }"""
        )
        assert dark > 10  # shades were drawn


def test_what_the_service_refuses_is_said_in_a_line(visit):
    with visit("live", ONE, errors=("422",)) as tab:
        tab.locator("#one").fill("bank " * 500)
        error = tab.locator("#error")
        expect(error).to_contain_text("2,000")
        assert error.bounding_box()["height"] < 60
        expect(tab.locator(".token")).to_have_count(5)  # what was there stays
        tab.locator("#one").fill("bank market")
        expect(tab.locator(".token")).to_have_count(2)
        expect(error).to_be_hidden()


def test_a_service_that_went_away_is_said(browser, folder, inspector):
    with running(Runtime.load(folder), ServiceSettings(), lambda: inspector) as address:
        found = browser.new_context()
        tab = found.new_page()
        tab.goto(address)
        expect(tab.locator("#results")).to_be_visible()
    tab.locator("#one").fill("bank market")
    expect(tab.locator("#error")).to_have_text("The service does not respond.")
    found.close()


def test_late_answers_are_dropped(visit):
    """The first question is answered after the second: the second's answer stays."""
    with visit("live", ONE, errors=("ERR_ABORTED", "ERR_FAILED")) as tab:
        held, over = [], []
        tab.route(
            "**/inspect", lambda route: held.append(route) if "coach" in route.request.post_data else route.continue_()
        )
        for event in ("requestfinished", "requestfailed"):
            tab.on(event, lambda request: over.append(request) if "coach" in (request.post_data or "") else None)
        tab.locator("#one").fill("the coach")
        until(tab, lambda: len(held) == 1)
        tab.locator("#one").fill("lunar probe orbit")
        expect(tab.locator(".token")).to_have_count(3)
        with contextlib.suppress(Exception):
            held[0].continue_()
        until(tab, lambda: len(over) == 1)
        tab.evaluate("() => new Promise(requestAnimationFrame)")  # whatever it does with the answer is done
        expect(tab.locator(".token")).to_have_count(3)
        expect(tab.locator("#error")).to_be_hidden()


def test_the_examples_and_the_address(visit, browser, address):
    with visit("live", ONE) as tab:
        tab.locator("[data-example='spring']").click()
        expect(tab.locator(".sentence")).to_have_count(2)
        expect(tab.get_by_role("button", name="spring", exact=True)).to_have_attribute("aria-pressed", "true")
        tab.locator("#one").fill("lunar probe")
        tab.locator("#two").fill("")
        expect(tab.locator(".sentence")).to_have_count(1)
        link = tab.url
    with visiting(browser, link) as tab:
        expect(tab.locator("#one")).to_have_value("lunar probe")
        expect(tab.locator(".token")).to_have_count(2)
    assert all(text in page() for texts in EXAMPLES.values() for text in texts)


def test_a_text_longer_than_a_window_says_so(browser, folder, tmp_path):
    classifier = Classifier.load(folder, "cpu")
    classifier.max_tokens = classifier.model.config.max_tokens = 4
    inspector = Inspector(classifier)
    data = {"about": inspector.about(), "readings": [inspector.read(ONE), inspector.read("the bank")]}
    (tmp_path / "page.html").write_text(page(data), "utf8")
    with visiting(browser, (tmp_path / "page.html").as_uri()) as tab:
        expect(tab.locator(".truncated")).to_have_count(1)  # the first sentence alone
        expect(tab.locator(".truncated")).to_contain_text("first 4 tokens")
        token(tab, "team").click()  # part of the label, and coloured, but after the first window
        expect(tab.locator("#wordfacts")).to_contain_text("Its anchors are not shown")
        expect(tab.locator(".anchor")).to_have_count(0)


@pytest.mark.parametrize(("attend", "sat"), [("tokens", True), ("anchors", True), ("gated", False)])
def test_models_without_gates_have_a_page_too(attend, sat, browser, codebook, topics, tmp_path):
    shape = Architecture(attend=attend, sat=sat, heads=2)
    model = AdeForSequenceClassification.from_codebook(codebook, topics.names, shape)
    inspector = Inspector(Classifier(model, codebook.tokenizer))
    data = {"about": inspector.about(), "readings": [inspector.read(ONE), inspector.read(TWO)]}
    (tmp_path / "page.html").write_text(page(data), "utf8")
    with visiting(browser, (tmp_path / "page.html").as_uri()) as tab:
        expect(tab.locator("#said")).to_contain_text("--attend gated")
        expect(tab.locator("#attention")).to_be_visible(visible=sat)
        assert {len(bars) for bars in rows(tab).values()} == {1}
        assert "%" not in tab.locator("#anchors").text_content()
        tab.locator("#two").select_option("")
        expect(tab.locator(".sentence")).to_have_count(1)
        assert {len(bars) for bars in rows(tab).values()} == {1}


@pytest.mark.parametrize(
    ("label", "shown"), [(["sport", "money"], "sport + money"), ([], "none of the labels"), (3.25, "3.25")]
)
def test_answers_of_other_kinds(label, shown, browser, inspector, tmp_path):
    reading = {**inspector.read(ONE), "label": label}
    if isinstance(label, float):
        reading["probabilities"] = {}
    (tmp_path / "page.html").write_text(page({"about": inspector.about(), "readings": [reading]}), "utf8")
    with visiting(browser, (tmp_path / "page.html").as_uri()) as tab:
        expect(tab.locator(".verdict")).to_have_text(shown)
        expect(tab.locator(".probabilities").first.locator("li")).to_have_count(len(reading["probabilities"]))
