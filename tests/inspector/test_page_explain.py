"""The page in a real Chromium: contributions of words, labels to choose from, and what it does while it waits."""

import contextlib
import threading

import pytest
from playwright.sync_api import expect
from tokenizers import Tokenizer, models, pre_tokenizers

from ade.classifier import Classifier
from ade.codebook import Codebook
from ade.errors import InputError
from ade.inspector.page import EXAMPLES, page
from ade.inspector.reading import Inspector
from ade.runtime.runtime import Runtime
from ade.settings import ServiceSettings
from tests.conftest import PATIENT, ragged_codebook
from tests.inspector.conftest import CHROMIUM, ONE, TWO, token, until, visiting
from tests.runtime.test_projection import shaken
from tests.service.test_app import running
from tests.test_explanation import classifier_of

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")


@contextlib.contextmanager
def saved(browser, tmp_path, made: Inspector, *texts: str):
    data = {"about": made.about(), "readings": [made.read(text) for text in texts]}
    (tmp_path / "page.html").write_text(page(data), "utf8")
    with visiting(browser, (tmp_path / "page.html").as_uri()) as tab:
        yield tab


def shown(value: float) -> str:
    sign = "\u2212" if value < 0 else "+"
    return "0" if abs(value) < 0.005 else f"{sign}{abs(value):.2f}"


def amounts(tab, side: int = 0) -> dict[str, tuple[str, str]]:
    """Of each word, what it is said to add, and its kind."""
    found = tab.locator(f".sentence[data-side='{side}'] .token").evaluate_all(
        """all => all.map(each =>
        [each.querySelector(".word").textContent, each.getAttribute("aria-label"), each.className])"""
    )
    return {
        word: (name.split(", adds ")[1].split(",")[0], next((k for k in ("adds", "takes") if k in kinds.split()), ""))
        for word, name, kinds in found
    }


def test_words_are_coloured_by_what_they_add_to_any_label(browser, tmp_path):
    made = Inspector(classifier_of(attend="gated"))
    text = "w3 w1 w4 w9 w5"
    explanation = made.classifier.explain(text)
    with saved(browser, tmp_path, made, text) as tab:
        for i, label in enumerate((explanation.label, *explanation.names)):
            if i:  # at first it is the predicted one
                tab.locator(".probabilities").get_by_role("button", name=label, exact=True).click()
            found = explanation.contributions(label)
            expected = {
                word.text: (shown(value), "" if shown(value) == "0" else "takes" if value < 0 else "adds")
                for word, value in zip(explanation.words, found.totals, strict=True)
            }
            assert amounts(tab) == expected
            expect(tab.locator(".adding")).to_contain_text(f"the score of {label}")
            expect(tab.locator(".sum")).to_contain_text(f"Score {found.score:.2f}")
            names = [name.strip("\u201c\u201d") for name in tab.locator(".ngrams bdi").all_text_contents()]
            assert names == [ngram.text for ngram, _ in explanation.strongest_ngrams(label, 6)]
            values = tab.locator(".ngrams .num").all_text_contents()
            assert values == [shown(value) for _, value in explanation.strongest_ngrams(label, 6)]
        kinds = {kind for _, kind in amounts(tab).values()}
        assert kinds >= {"adds", "takes"}  # both hues occur, and differ
        hues = {
            kind: tab.locator(f".token.{kind} .word").first.evaluate("each => getComputedStyle(each).borderBottom")
            for kind in ("adds", "takes")
        }
        assert "solid" in hues["adds"]
        assert "dotted" in hues["takes"]
        assert hues["adds"].split("rgb")[1] != hues["takes"].split("rgb")[1]


def test_a_number_has_contributions_too(browser, tmp_path):
    made = Inspector(classifier_of(labels=1, problem="regression", attend="tokens"))
    with saved(browser, tmp_path, made, "w3 w1 w4") as tab:
        expect(tab.locator(".adding")).to_contain_text("adds to the number")
        expect(tab.locator(".sum")).to_contain_text(f"Number {made.classifier.predict('w3 w1 w4'):.2f} = ")
        assert list(amounts(tab)) == ["w3", "w1", "w4"]


def pieces_classifier() -> Classifier:
    """A model whose tokenizer splits `wading` and `longlegged` into pieces."""
    vocabulary = ["[UNK]", "wad", "##ing", "bird", "long", "##leg", "##ged", "a"]
    tokenizer = Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]", max_input_chars_per_word=99)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    plain = ragged_codebook([2] * len(vocabulary), dim=32)
    book = Codebook.from_pairs(plain.anchors, plain.indices, plain.weights, plain.counts, tokenizer)
    return Classifier(shaken(book, 3, attend="gated", heads=2), tokenizer)


def test_words_not_pieces(browser, tmp_path):
    made = Inspector(pieces_classifier())
    text = "a longlegged wading bird"
    with saved(browser, tmp_path, made, text, "wading bird") as tab:
        assert tab.locator(".sentence").first.locator(".word").all_text_contents() == text.split()
        assert sorted(tab.locator("#common .chip").all_text_contents()) == ["bird", "wading"]
        token(tab, "longlegged").click()
        expect(tab.locator("#wordtitle")).to_have_text("longlegged")
        assert [each.split("\u201c")[1].strip("\u201d") for each in tab.locator(".piece").all_text_contents()] == [
            "long", "leg", "ged",
        ]  # fmt: skip
        expect(tab.locator(".anchor")).to_have_count(6)
        tab.locator(".anchor").nth(1).focus()
        tab.keyboard.press("ArrowDown")  # over the title of the next piece
        expect(tab.locator(".anchor").nth(2)).to_be_focused()
        attention = made.read(text)["attention"]
        summed = sum(attention[0][4:6])  # from `a` to both pieces of `wading`
        canvas = tab.locator(".heat canvas").first
        canvas.focus()
        for key in ("ArrowRight", "ArrowUp", "ArrowRight", "ArrowRight"):
            canvas.press(key)
        expect(tab.locator(".readout").first).to_have_text(f"“a” attends {100 * summed:.1f}% to “wading”")
        token(tab, "wading", 1).click()
        for side in (0, 1):
            expect(token(tab, "wading", side)).to_have_attribute("aria-selected", "true")


def test_a_change_of_a_negative_weight_cannot_be_misread(browser, tmp_path):
    made = Inspector(classifier_of(attend="gated", lexicon=False))
    reading = made.read(ONE_OF_MANY)
    negative = [use for each in reading["tokens"] for use in each["anchors"] if use["weight"] < 0]
    assert {abs(use["in_context"]) > abs(use["weight"]) for use in negative} == {True, False}
    with saved(browser, tmp_path, made, ONE_OF_MANY) as tab:
        for at, each in enumerate(reading["tokens"]):
            tab.locator(".token").nth(at).click()
            expect(tab.locator(".anchor")).to_have_count(len(each["anchors"]))
            for use in each["anchors"]:
                change = abs(use["in_context"] / use["weight"]) - 1
                way = "stronger" if change > 0 else "weaker"
                row = tab.locator(f".anchor[data-anchor='{use['anchor']}'] .delta")
                if abs(change) > 0.005:
                    expect(row).to_contain_text(f"{abs(100 * change):.0f}% {way}")


ONE_OF_MANY = "w3 w1 w4 w9"


def test_percentages_say_of_what(visit):
    with visit("file", ONE, TWO) as tab:
        expect(tab.locator(".verdict").first).to_contain_text("% probability")
        expect(tab.locator(".probabilitybox h3").first).to_contain_text("Probability of each label")
        expect(tab.locator("#wordfacts")).to_contain_text("share of the vector the text is classified by")
        expect(tab.locator("#legend")).to_contain_text("in the second sentence against the first")
        expect(tab.locator("#attention .note").first).to_contain_text("sums to 100%")


def test_clearing_a_field_clears_its_result(visit):
    with visit("live", ONE, TWO) as tab:
        expect(tab.locator(".sentence")).to_have_count(2)  # the answer to both, not that to the first alone
        tab.locator("#two").fill("")
        expect(tab.locator(".sentence")).to_have_count(1)
        expect(tab.locator(".sentence")).to_contain_text("team")
        tab.locator("#two").fill(TWO)
        expect(tab.locator(".sentence")).to_have_count(2)
        tab.locator("#one").fill("")
        expect(tab.locator(".sentence")).to_have_count(1)
        expect(tab.locator(".sentence")).to_contain_text("market")
        tab.locator("#two").fill(" ")
        expect(tab.locator("#results")).to_be_hidden()
        expect(tab.locator("#error")).to_be_hidden()
        tab.locator("#two").fill("lunar")
        expect(tab.locator(".verdict")).to_be_visible()


def test_a_link_opens_what_it_says(browser, address):
    with visiting(browser, f"{address}/#b=lunar+probe") as tab:
        expect(tab.locator(".token")).to_have_count(2)
        expect(tab.locator("#one")).to_have_value("")
        expect(tab.locator("#two")).to_have_value("lunar probe")
        tab.evaluate("location.hash = '#a=the+coach'")  # another link, in the page that is open
        expect(tab.locator("#one")).to_have_value("the coach")
        expect(tab.locator("#two")).to_have_value("")
        expect(token(tab, "coach")).to_be_visible()
        tab.locator("#one").fill("")
        expect(tab.locator("#results")).to_be_hidden()
        link = tab.url
    with visiting(browser, link) as tab:  # nothing, not the example
        expect(tab.locator("#loading")).to_be_hidden()
        expect(tab.locator("#results")).to_be_hidden()
        expect(tab.locator("#one")).to_have_value("")


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
        expect(tab.locator("#error")).to_be_hidden()
        expect(tab.locator("#status")).to_have_text("")


def test_typing_goes_on_while_the_service_is_slow(browser, folder, inspector):
    """Each key abandons the request before it; the service works on few of them, the last one is answered."""
    go, asked = threading.Event(), []

    class Slow(Inspector):
        def read(self, text):
            asked.append(text)
            assert go.wait(PATIENT)
            return super().read(text)

    slow = Slow(inspector.classifier)
    texts = ["bank " * count for count in range(1, 25)]
    with running(Runtime.load(folder), ServiceSettings(), lambda: slow) as address:
        try:
            with visiting(browser, f"{address}/#a=rocket", errors=("ERR_ABORTED",)) as tab:
                until(tab, lambda: len(asked) == 1)
                for text in texts:
                    with tab.expect_request("**/inspect"):
                        tab.locator("#one").fill(text)
                        tab.keyboard.press("Enter")
                go.set()
                expect(tab.locator(".token")).to_have_count(24)
                expect(tab.locator("#wordtitle")).to_have_text("bank")
                expect(tab.locator("#error")).to_be_hidden()
            assert asked[-1] == texts[-1]
            assert len(asked) < 12
        finally:
            go.set()


def test_the_first_result_needs_no_inspector(browser, folder, inspector):
    go = threading.Event()

    def make() -> Inspector:
        assert go.wait(PATIENT)
        return inspector

    with running(Runtime.load(folder), ServiceSettings(), make) as address:
        try:
            with visiting(browser, f"{address}/#a=the+bank+of+the+team") as tab:
                expect(tab.locator(".token")).to_have_count(5)
                expect(tab.locator("#preparing")).to_be_visible()
                expect(tab.locator("#loading")).to_be_hidden()
                expect(tab.locator("#wordgrid")).to_be_hidden()
                token(tab, "bank").click()  # it can be used meanwhile
                expect(token(tab, "bank")).to_have_attribute("aria-selected", "true")
                go.set()
                expect(tab.locator("#wordtitle")).to_have_text("bank")
                expect(tab.locator("#preparing")).to_be_hidden()
        finally:
            go.set()


def test_a_service_whose_inspector_cannot_be_loaded_still_explains(browser, folder):
    def make():
        raise InputError("this service only predicts")

    with contextlib.ExitStack() as opened:
        address = opened.enter_context(running(Runtime.load(folder), ServiceSettings(), make))
        tab = opened.enter_context(visiting(browser, f"{address}/#a=the+bank", errors=("409",)))
        expect(tab.locator(".token")).to_have_count(2)
        expect(tab.locator("#error")).to_have_text("this service only predicts")
        expect(tab.locator("#preparing")).to_be_hidden()
        expect(tab.locator("#loading")).to_be_hidden()


def test_until_then_the_page_says_that_it_is_loading(browser, address):
    with visiting(browser, f"{address}/docs") as tab:
        held, holding = [], True
        for path in ("inspect", "explain", "about"):
            tab.route(f"**/{path}", lambda route: held.append(route) if holding else route.continue_())
        tab.goto(address)
        expect(tab.locator("#loading")).to_be_visible()
        expect(tab.locator("#results")).to_be_hidden()
        holding = False
        for route in held:
            route.continue_()
        expect(tab.locator("#results")).to_be_visible()
        expect(tab.locator("#loading")).to_be_hidden()


@pytest.mark.parametrize("clear", [True, False])
def test_it_opens_on_the_clearest_example(clear, browser, folder, inspector):
    best = "crane"

    class Ranked(Inspector):
        def about(self):
            found = [{"word": word, "texts": list(EXAMPLES[word]), "moved": 0.0} for word in (best, "bank")]
            found[0]["moved"] = 0.2 if clear else 0.01
            return {**super().about(), "examples": found}

    made = Ranked(inspector.classifier)
    with running(Runtime.load(folder), ServiceSettings(), lambda: made) as address, visiting(browser, address) as tab:
        for field, text in zip(("#one", "#two"), EXAMPLES[best], strict=True):
            expect(tab.locator(field)).to_have_value(text)
        expect(tab.locator("#results")).to_be_visible()
        expect(tab.locator("#unmoved")).to_be_visible(visible=not clear)


def test_right_to_left(browser, tmp_path):
    made = Inspector(classifier_of(attend="gated"))
    with saved(browser, tmp_path, made, "بنك النهر", "w3 w1") as tab:
        first, second = (tab.locator(f".sentence[data-side='{side}']") for side in (0, 1))
        assert first.evaluate("each => getComputedStyle(each).direction") == "rtl"
        assert second.evaluate("each => getComputedStyle(each).direction") == "ltr"
        boxes = [each.bounding_box()["x"] for each in first.locator(".token").all()]
        assert boxes[0] > boxes[1]  # the first word stands to the right
        first.locator(".token").first.focus()
        tab.keyboard.press("ArrowLeft")
        expect(first.locator(".token").nth(1)).to_be_focused()
