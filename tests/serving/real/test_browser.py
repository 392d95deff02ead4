"""The playground in a browser: every panel answers, in both languages, on wide and narrow screens, for everybody.

With FIRTH_SCREENSHOTS=1 the picture of the documentation is written anew.
"""

import os
import shlex
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from running import Server

from firth.inference.model import Model

PICTURE = Path(__file__).resolve().parents[3] / "docs" / "images" / "playground.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Each model with the panels that are used on its page; together they are all that there are.
PANELS = {
    "en": ("tokens", "input", "masks", "masking", "attention", "hidden", "similar", "learn"),
    "masked": ("next",),
    "gpt": ("write",),
    "classify": ("labels",),
    "tag": ("entities",),
    "answer": ("answer",),
    "mt": ("cross",),
    "words": ("nearest",),
}
WIDE, NARROW = 1280, 390
PATIENCE_MS = 120_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, as the system has it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-serve")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed: apt-get install chromium fonts-noto-cjk")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=found, args=list(FLAGS))
        yield opened
        opened.close()


class Visit:
    """A page of the playground, and what it did that it must not."""

    def __init__(self, browser: Any, server: Server, width: int, scheme: str = "light"):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.context.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.context.route("**/*", self._route)
        self.page = self.context.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.goto(server.address + "/")
        self.page.wait_for_selector("section")

    def _route(self, route: Any) -> None:
        url = route.request.url
        if urlsplit(url).hostname == "127.0.0.1":
            route.continue_()
        else:
            self.complaints.append(f"a request to {url}")
            route.abort()

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def korean(self) -> None:
        self.page.click("#language")
        self.page.wait_for_function("document.documentElement.lang === 'ko' && document.querySelector('section')")

    def choose(self, model: str) -> None:
        """The page of a model; its panels are other elements than those before."""
        if self.page.input_value("#model") == model:
            return
        old = self.page.query_selector("section")
        self.page.select_option("#model", model)
        self.page.wait_for_function("old => !old.isConnected", arg=old)

    def panel(self, name: str) -> Any:
        return self.page.locator(f"section[data-panel='{name}']")

    def run(self, name: str) -> str:
        """Use a panel with the texts that it proposes; its answer's text."""
        panel = self.panel(name)
        panel.locator("button[type=submit]").click()
        panel.locator(".answer[aria-busy=false]").wait_for(state="attached")
        assert not panel.locator(".wrong").count(), f"{name}: {panel.locator('.wrong').inner_text()}"
        return str(panel.locator(".answer").inner_text())

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def violations(self) -> list[str]:
        """What axe-core finds that is serious or critical."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe: make test-serve")
        found = axe.Axe().run(self.page).response["violations"]
        return [
            f"{one['id']}: {one['help']}: {node['html'][:200]} {node['any'][:1] and node['any'][0]['message']}"
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]


@pytest.mark.parametrize(
    ("language", "width", "scheme"),
    [("en", WIDE, "light"), ("en", NARROW, "dark"), ("ko", WIDE, "dark"), ("ko", NARROW, "light")],
)
def test_every_panel_answers(browser: Any, server: Server, language: str, width: int, scheme: str) -> None:
    visit = Visit(browser, server, width, scheme)
    if language == "ko":
        visit.korean()
    faults = []
    for model, names in PANELS.items():
        visit.choose(model)
        for name in names:
            assert visit.run(name).strip() or visit.panel(name).locator(".answer svg").count(), name
            for details in visit.panel(name).locator("details:not([open]) > summary").all():
                details.click()
        faults += [f"{model}: {one}" for one in visit.violations()]
        if (pixels := visit.overflow()) > 0:
            faults.append(f"{model}: the page is {pixels} pixels wider than the window")
    assert faults + visit.complaints == []
    visit.context.close()


def test_these_are_all_panels(browser: Any, server: Server, served_folders: dict[str, Path]) -> None:
    visit, found = Visit(browser, server, WIDE), set()
    for model in ("en", *served_folders):
        visit.choose(model)
        found |= {one.get_attribute("data-panel") for one in visit.page.locator("section").all()}
    assert found == {name for names in PANELS.values() for name in names}
    visit.context.close()


def test_the_answers_are_the_librarys(browser: Any, server: Server, mini: Model, predictors: dict[str, Any]) -> None:
    visit = Visit(browser, server, WIDE)
    (blank,) = mini.fill_mask("The capital of France is [MASK].", top_k=5)
    shown = visit.run("masks").split("\n")
    assert [line for line in shown if line][::2] == [one.token for one in blank.candidates]
    text = visit.panel("tokens").locator("textarea").input_value()
    visit.run("tokens")
    tokens = visit.panel("tokens").locator(".token:not(.special)")
    assert [one.split()[0] for one in tokens.all_inner_texts()] == [one.token for one in mini.tokenize(text)]
    visit.choose("classify")
    best = max(predictors["classify"].predict([text])[0].probabilities.items(), key=lambda one: one[1])
    assert visit.run("labels").split()[:2] == [best[0], f"{best[1]:.3f}"]
    visit.choose("masked")
    assert f"{predictors['masked'].follows(text, 'He was very tired.'):.3f}" in visit.run("next")
    visit.context.close()


def test_the_curl_commands_are_answered(browser: Any, server: Server) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    visit = Visit(browser, server, WIDE)
    visit.korean()
    for model in PANELS:
        visit.choose(model)
        for command in visit.page.locator("section pre").all_text_contents():
            words = [*shlex.split(command), "--fail", "--silent"]
            done = subprocess.run(words, capture_output=True, timeout=PATIENCE_MS / 1e3)
            assert done.returncode == 0 and done.stdout, command
    visit.context.close()


def test_it_is_used_without_a_mouse(browser: Any, server: Server) -> None:
    visit = Visit(browser, server, WIDE)
    visit.page.locator("#language").focus()
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_function("document.documentElement.lang === 'ko'")
    panel = visit.panel("masks")
    panel.locator("textarea").focus()
    visit.page.keyboard.press("Tab")
    outline = visit.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert visit.page.evaluate("document.activeElement.type") == "submit" and outline != "none"
    visit.page.keyboard.press("Enter")
    panel.locator("meter").first.wait_for()
    # The answer comes without the focus being lost.
    assert visit.page.evaluate("document.activeElement.type") == "submit"
    visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("Enter")
    assert panel.locator("details").get_attribute("open") is not None
    visit.context.close()


def test_a_refusal_is_shown_in_its_panel(browser: Any, server: Server) -> None:
    visit = Visit(browser, server, WIDE)
    panel = visit.panel("masks")
    panel.locator("textarea").fill("no mask")
    panel.locator("button[type=submit]").click()
    panel.locator(".wrong").wait_for()
    assert "[MASK]" in panel.locator(".wrong").inner_text()
    assert visit.violations() == []
    visit.context.close()


@pytest.mark.skipif(not os.environ.get("FIRTH_SCREENSHOTS"), reason="FIRTH_SCREENSHOTS=1 writes the picture")
def test_the_picture_of_the_documentation(browser: Any, server: Server) -> None:
    visit = Visit(browser, server, WIDE)
    for name in ("masks", "masking", "attention", "hidden"):
        visit.run(name)
    visit.panel("attention").evaluate("panel => panel.scrollIntoView({ block: 'start' })")
    visit.page.screenshot(path=PICTURE)
    visit.context.close()
