"""The inspector's page in a real Chromium, and small models to show on it."""

import contextlib
import shutil
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from ade.inspector.page import page
from ade.inspector.reading import Inspector
from ade.service.model import ServedModel
from ade.settings import Architecture, ServiceSettings, TrainingSettings
from ade.trained_model import Classifier
from ade.training.loop import fit_model
from tests.service.conftest import running

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
ONE, TWO = "the bank of the team", "profit of the bank market"
SLOWEST = 120_000  # milliseconds a page may take to do what is expected of it, on a machine of any speed
expect.set_options(timeout=SLOWEST)


@pytest.fixture(scope="module")
def folder(codebook, topics, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "model"
    chosen = TrainingSettings(steps=80, batch_size=16, learning_rate=1e-2, device="cpu")
    fit_model(codebook, topics, settings=chosen, architecture=Architecture(heads=2), out=out)
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


def served(folder, inspector) -> ServedModel:
    """A model behind the service, with an inspector of the test's own."""
    return ServedModel(Classifier.load(folder, "cpu"), "model", inspector)


@pytest.fixture(scope="module")
def address(folder, inspector):
    with running(served(folder, inspector), ServiceSettings()) as found:
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


def until(tab: Page, happened: Callable[[], bool]) -> None:
    for _ in range(SLOWEST // 20):
        if happened():
            return
        tab.wait_for_timeout(20)
    raise AssertionError("it never happened")
