"""The inspector's page in a real Chromium, as a file and live; nothing goes to another host or to the console."""

import contextlib
import json
import shutil
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from ade.classifier import Classifier
from ade.inspector.page import EXAMPLES, page
from ade.inspector.reading import Inspector
from ade.model import AdeForSequenceClassification
from ade.runtime.runtime import Runtime
from ade.settings import Architecture, ServiceSettings, TrainingSettings
from ade.training.loop import fit_model
from tests.conftest import WORDS
from tests.service.test_app import running

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
ONE, TWO = "the bank of the team", "profit of the bank market"
HOSTILE = 'bank <img src=x onerror="window.hit=1"> </script><script>window.hit=1</script> & "quoted"'
BOTH = pytest.mark.parametrize("kind", ["file", "live"])
SLOWEST = 120_000  # milliseconds a page may take to do what is expected of it, on a machine of any speed
expect.set_options(timeout=SLOWEST)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")


@pytest.fixture(scope="module")
def folder(codebook, topics, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "model"
    chosen = TrainingSettings(steps=80, batch_size=16, learning_rate=1e-2, device="cpu")
    fit_model(codebook, topics, settings=chosen, architecture=Architecture(attend="gated", heads=2), out=out)
    return out


@pytest.fixture(scope="module")
def inspector(folder):
    return Inspector(Classifier.load(folder, "cpu"))


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield found
        found.close()


@pytest.fixture(scope="module")
def address(folder, inspector):
    with running(Runtime.load(folder), ServiceSettings(), lambda: inspector) as found:
        yield found


@contextlib.contextmanager
def visiting(browser, url: str, errors: tuple[str, ...] = (), **settings):
    """A page that is read without a complaint and asks nobody else; `errors` are those a test provokes."""
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
    tab, said, asked = context.new_page(), [], []
    tab.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.set_default_timeout(SLOWEST)
    try:
        tab.goto(url)
        yield tab
    finally:
        context.close()
    assert [line for line in said if not any(known in line for known in errors)] == []
    home = urlsplit(url)
    assert all(urlsplit(each)[:2] == home[:2] for each in asked), asked


@pytest.fixture
def visit(browser, address, inspector, tmp_path):
    """The page with these texts in it: served and typed into, or as a file."""

    @contextlib.contextmanager
    def opened(kind: str, *texts: str, **settings):
        if kind == "file":
            data = {"about": inspector.about(), "readings": [inspector.read(text) for text in texts], "words": ["bank"]}
            (tmp_path / "page.html").write_text(page(data), "utf8")
            with visiting(browser, (tmp_path / "page.html").as_uri(), **settings) as tab:
                yield tab
            return
        with visiting(browser, address, **settings) as tab:
            expect(tab.locator("#results")).to_be_visible()
            for field, text in zip(("#one", "#two"), (*texts, ""), strict=False):
                tab.locator(field).fill(text)
            expect(tab.locator(".sentence")).to_have_count(len(texts))
            expect(tab.locator(".sentence").first).to_contain_text(texts[0].split()[-1].strip('"'))
            yield tab

    return opened


def token(tab: Page, text: str, side: int = 0):
    return tab.locator(f".sentence[data-side='{side}'] .token").filter(has=tab.get_by_text(text, exact=True)).first


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
        assert max(tab.locator(".percent").evaluate_all("all => all.map(each => each.scrollHeight)")) < 20  # one line
        for each in now["tokens"]:
            expect(token(tab, each["token"])).to_have_attribute(
                "aria-label", f"{each['token']}, pooling weight {pct(each['share'])}"
            )


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
        sign = "\u2212" if moved < 0 else "+"
        expect(tab.locator(".anchor .delta").first).to_contain_text(f"{sign}{abs(100 * moved):.0f}%")
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
        before = tab.locator(".tip").text_content()
        for key in ("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown"):
            tab.keyboard.press(key)
        assert tab.locator("#mapsaid").text_content().startswith("Anchor ")
        assert before
        tab.keyboard.press("Enter")
        expect(tab.locator("#detail")).to_be_focused()
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
    model = AdeForSequenceClassification.from_codebook(codebook, names, Architecture(attend="gated", heads=2))
    inspector = Inspector(Classifier(model, codebook.tokenizer))
    (tmp_path / "page.html").write_text(page({"about": inspector.about(), "readings": [inspector.read(ONE)]}), "utf8")
    with visiting(browser, (tmp_path / "page.html").as_uri()) as tab:
        assert sorted(tab.locator(".probabilities .name").all_text_contents()[:2]) == sorted(names)
        assert tab.evaluate("window.hit") is None


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


def until(tab: Page, happened: Callable[[], bool]) -> None:
    for _ in range(SLOWEST // 20):
        if happened():
            return
        tab.wait_for_timeout(20)
    raise AssertionError("it never happened")


def test_the_examples_and_the_address(visit, browser, address):
    with visit("live", ONE) as tab:
        tab.get_by_role("button", name="spring", exact=True).click()
        expect(tab.locator(".sentence")).to_have_count(2)
        expect(tab.get_by_role("button", name="spring", exact=True)).to_have_attribute("aria-pressed", "true")
        tab.locator("#one").fill("lunar probe")
        tab.locator("#two").fill("")
        expect(tab.locator(".sentence")).to_have_count(1)
        link = tab.url
    with visiting(browser, link) as tab:
        expect(tab.locator("#one")).to_have_value("lunar probe")
        expect(tab.locator(".token")).to_have_count(2)
    assert all(text in page() for text in EXAMPLES)


def test_a_text_longer_than_a_window_says_so(browser, folder, tmp_path):
    classifier = Classifier.load(folder, "cpu")
    classifier.max_tokens = classifier.model.config.max_tokens = 4
    inspector = Inspector(classifier)
    data = {"about": inspector.about(), "readings": [inspector.read(ONE), inspector.read("the bank")]}
    (tmp_path / "page.html").write_text(page(data), "utf8")
    with visiting(browser, (tmp_path / "page.html").as_uri()) as tab:
        expect(tab.locator(".truncated")).to_have_count(1)  # the first sentence alone
        expect(tab.locator(".truncated")).to_contain_text("first 4 tokens")
        expect(tab.locator(".undetailed")).to_have_text("team")


def test_no_motion_where_none_is_wanted(visit):
    moving = "getComputedStyle(document.querySelector('.bar')).transitionDuration"
    for wanted, expected in (("reduce", "0s"), ("no-preference", "0.22s")):
        with visit("file", ONE, reduced_motion=wanted) as tab:
            assert tab.evaluate(moving).split(",")[0] == expected


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


def test_the_command_writes_a_page(ade, folder, browser, tmp_path):
    file = tmp_path / "look.html"
    status, out, _ = ade("inspect", folder, "--html", file, "--text", ONE, "--text", TWO, "--text", "lunar", "--json")
    assert status == 0
    assert json.loads(out) == {"html": str(file), "bytes": file.stat().st_size, "texts": 3}
    with visiting(browser, file.as_uri()) as tab:
        assert tab.locator("#one option").all_text_contents() == [ONE, TWO, "lunar"]
        tab.locator("#one").select_option("2")
        tab.locator("#two").select_option("")
        expect(tab.locator("#wordtitle")).to_have_text("lunar")
        expect(tab.locator("#tries")).to_contain_text("ade serve")
    written = file.read_bytes()
    status, _, err = ade("inspect", folder, "--html", file)
    assert (status, err.count("\n")) == (2, 1)
    assert "--overwrite" in err
    assert file.read_bytes() == written
    status, out, _ = ade("inspect", folder, "bank", "--html", file, "--overwrite")
    assert status == 0
    assert "2 sentences" in out
    with visiting(browser, file.as_uri()) as tab:
        expect(tab.locator("#wordtitle")).to_have_text("bank")
        expect(tab.locator(".sentence")).to_have_count(2)


def test_what_the_command_refuses(ade, folder, codebook, tmp_path):
    codebook.save(tmp_path / "codebook")
    for words, reason in (
        ((folder,), "--html FILE"),
        ((folder, "bank", "--text", ONE, "--text", TWO), "--html FILE"),
        ((folder, "--html", tmp_path), "not a file"),
        ((folder, "--html", tmp_path / "none" / "page.html"), "not a file"),
        ((tmp_path / "codebook", "--html", tmp_path / "page.html"), "trained model"),
        ((tmp_path / "nothing", "--html", tmp_path / "page.html"), "not a model folder"),
    ):
        status, out, err = ade("inspect", *words)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert reason in err
    assert not (tmp_path / "page.html").exists()
