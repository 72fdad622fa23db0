"""`ade inspect --html`: the page that it writes, in a real Chromium, and what it refuses."""

import json

import pytest
from playwright.sync_api import expect

from tests.inspector.conftest import CHROMIUM, ONE, TWO, visiting


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")
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
        ((folder, "--text", ONE), "--html FILE"),
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
