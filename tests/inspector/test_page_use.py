"""The page in a real Chromium for everyone: keyboard, contrast, small screens, no motion; and texts that are markup."""

import pytest
from playwright.sync_api import Page, expect

from ade.inspector.page import page
from ade.inspector.reading import Inspector
from ade.trained_model import Classifier
from tests.conftest import untrained
from tests.inspector.conftest import CHROMIUM, ONE, TWO, token, visiting

HOSTILE = 'bank <img src=x onerror="window.hit=1"> </script><script>window.hit=1</script> & "quoted"'
BOTH = pytest.mark.parametrize("kind", ["file", "live"])
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")


def test_keyboard_alone(visit):
    with visit("live", ONE) as tab:
        tab.locator("h1").click()
        tab.keyboard.press("/")
        expect(tab.locator("#one")).to_be_focused()
        tab.keyboard.type("coach of the bank")
        tab.keyboard.press("Enter")
        expect(tab.locator(".token")).to_have_count(4)
        until_focused(tab, ".token")
        tab.keyboard.press("Home")
        expect(tab.locator("#wordtitle")).to_have_text("coach")
        tab.keyboard.press("ArrowRight")
        expect(tab.locator("#wordtitle")).to_have_text("of")
        tab.keyboard.press("ArrowRight")
        expect(tab.locator("#wordtitle")).to_have_text("the")
        tab.keyboard.press("End")
        expect(token(tab, "bank")).to_be_focused()
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        until_focused(tab, ".anchor")
        tab.keyboard.press("ArrowDown")
        expect(tab.locator(".anchor").nth(1)).to_be_focused()
        tab.keyboard.press("Enter")
        expect(tab.locator("#detail")).to_be_focused()
        tab.keyboard.press("Escape")
        expect(tab.locator("#detail")).to_be_hidden()
        expect(tab.locator(".anchor").nth(1)).to_be_focused()
        until_focused(tab, "#map")
        tab.keyboard.press("ArrowLeft")
        assert tab.locator("#mapsaid").text_content().startswith("Anchor ")
        nameless = tab.evaluate(
            """() => [...document.querySelectorAll("button, textarea, canvas, [tabindex='0']")].filter(each =>
            !(each.getAttribute("aria-label") || each.textContent.trim() || each.labels?.length)).length"""
        )
        assert nameless == 0


def until_focused(tab: Page, selector: str, most: int = 40) -> None:
    for _ in range(most):
        tab.keyboard.press("Tab")
        if tab.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab never comes to {selector}")


def background(tab: Page) -> int:
    colour = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    return max(int(part) for part in colour.strip("rgb()").split(","))


@BOTH
def test_light_and_dark(kind, visit):
    with visit(kind, ONE, color_scheme="dark") as tab:
        assert background(tab) < 40
        tab.get_by_role("button", name="Switch to the light theme").click()
        assert background(tab) > 230
        if kind == "live":  # what a browser keeps for a file it may read back late
            tab.reload()
            expect(tab.locator("#results")).to_be_visible()
            assert background(tab) > 230
    with visit(kind, ONE, color_scheme="light") as tab:
        assert background(tab) > 230
        contrasts = tab.evaluate(CONTRASTS)
        tab.get_by_role("button", name="Switch to the dark theme").click()
        assert background(tab) < 40
        assert min(contrasts + tab.evaluate(CONTRASTS)) >= 4.5


# Contrast of every text with what lies behind it, by WCAG's formula.
CONTRASTS = """() => {
  const parse = colour => colour.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map(v => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = node => {
    const colour = parse(getComputedStyle(node).backgroundColor);
    return colour.length < 4 || colour[3] === 1 ? colour : behind(node.parentElement);
  };
  const texts = [...document.querySelectorAll("body *:not(script):not(noscript)")].filter(node => node.offsetParent &&
    [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim()));
  return texts.map(node => { const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); });
}"""


@BOTH
def test_a_phone_needs_no_scrolling_sideways(kind, visit):
    long = " ".join(["the bank of the team and the market"] * 12)
    for texts in ((ONE, TWO), (long,)):
        with visit(kind, *texts, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as tab:
            assert tab.evaluate("document.documentElement.scrollWidth") <= 360
            tab.locator(".anchor").first.tap()
            expect(tab.locator("#detail")).to_be_in_viewport()
            assert tab.evaluate("document.documentElement.scrollWidth") <= 360
            wide = tab.locator(".bars").first.bounding_box()
            assert wide["width"] > 100
            assert tab.locator("textarea, select").first.bounding_box()["height"] >= 44


@BOTH
def test_markup_in_a_text_stays_text(kind, visit):
    with visit(kind, HOSTILE) as tab:
        shown = tab.locator(".sentence .word, .sentence .gap").all_text_contents()
        assert "".join(shown).replace(" ", "") == HOSTILE.replace(" ", "")
        assert tab.evaluate("window.hit") is None
        assert tab.locator("img, body script:not([id]):not(:last-of-type)").count() == 0


def test_markup_in_a_label_stays_text(browser, codebook, tmp_path):
    names = ["<img src=x onerror=window.hit=1>", "</script><script>window.hit=1</script>"]
    inspector = Inspector(Classifier(untrained(codebook, names, heads=2)))
    (tmp_path / "page.html").write_text(page({"about": inspector.about(), "readings": [inspector.read(ONE)]}), "utf8")
    with visiting(browser, (tmp_path / "page.html").as_uri()) as tab:
        assert sorted(tab.locator(".probabilities .name").all_text_contents()[:2]) == sorted(names)
        assert tab.evaluate("window.hit") is None


def test_no_motion_where_none_is_wanted(visit):
    moving = "getComputedStyle(document.querySelector('.bar')).transitionDuration"
    for wanted, expected in (("reduce", "0s"), ("no-preference", "0.22s")):
        with visit("file", ONE, reduced_motion=wanted) as tab:
            assert tab.evaluate(moving).split(",")[0] == expected


def test_right_to_left(visit):
    with visit("file", "بنك النهر", ONE) as tab:
        first, second = (tab.locator(f".sentence[data-side='{side}']") for side in (0, 1))
        assert first.evaluate("each => getComputedStyle(each).direction") == "rtl"
        assert second.evaluate("each => getComputedStyle(each).direction") == "ltr"
        boxes = [each.bounding_box()["x"] for each in first.locator(".token").all()]
        assert boxes[0] > boxes[1]  # the first word stands to the right
        first.locator(".token").first.focus()
        tab.keyboard.press("ArrowLeft")
        expect(first.locator(".token").nth(1)).to_be_focused()
