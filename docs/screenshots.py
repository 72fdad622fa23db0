"""The pictures of the inspector in docs/images, made from a real model by a real browser.

Needs Chromium and Pillow. python docs/screenshots.py MODEL, after
ade train wordnet --teacher wordllama --set steps=1500 --out MODEL
"""

import json
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parent / "images"
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def shoot(browser: Browser, address: str, name: str, theme: str, width: int, part: tuple[str, str]) -> None:
    """One picture of the example of spring, from one element of the page to the end of another."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, device_scale_factor=2 if width < 500 else 1
    )
    tab = context.new_page()
    tab.goto(address)
    tab.locator("[data-example='spring']").click()
    tab.locator("#wordtitle", has_text="spring").wait_for()
    tab.locator("#preparing").wait_for(state="hidden")
    if theme == "dark":
        tab.locator(".anchor").nth(1).click()
    tab.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    tab.wait_for_timeout(500)  # bars come to rest
    first, last = (tab.locator(each).bounding_box() for each in part)
    assert first is not None
    assert last is not None
    top = max(0, first["y"] - 16)
    clip = {"x": 0, "y": top, "width": width, "height": last["y"] + last["height"] + 16 - top}
    picture = Image.open(BytesIO(tab.screenshot(full_page=True, clip=clip)))
    picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=4).save(
        IMAGES / f"inspector-{name}.png", optimize=True
    )
    context.close()


def main() -> None:
    """Serve the model, take the pictures."""
    IMAGES.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "ade", "serve", sys.argv[1], "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service, sync_playwright() as playwright:
        try:
            assert service.stdout is not None
            address = json.loads(service.stdout.readline())["address"]
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
            shoot(browser, address, "light", "light", 1160, ("header", "#word"))
            shoot(browser, address, "dark", "dark", 1160, ("#word", "#attention"))
            shoot(browser, address, "phone", "light", 390, ("header", "#predictions > :first-child"))
            browser.close()
        finally:
            service.terminate()


if __name__ == "__main__":
    main()
