"""A browser that visits the playground of a running server."""

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

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
WIDE, NARROW = 1280, 390
PATIENCE_MS = 120_000


@contextmanager
def opened_browser() -> Iterator[Any]:
    """The system's Chromium; tests that need it are skipped if it is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-serve")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed: apt-get install chromium fonts-noto-cjk")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=found, args=list(FLAGS))
        yield opened
        opened.close()


class Visit:
    """A page of the playground, and the forbidden things it did."""

    def __init__(self, browser: Any, address: str, width: int, scheme: str = "light"):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.context.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.context.route("**/*", self._route)
        self.page = self.context.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.goto(address + "/")
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
        old = self.page.query_selector("section")
        self.page.click("#language")
        self.page.wait_for_function("old => document.documentElement.lang === 'ko' && !old.isConnected", arg=old)

    def choose(self, model: str) -> None:
        """Open the page of a model; its panels are new elements."""
        if self.page.input_value("#model") == model:
            return
        old = self.page.query_selector("section")
        self.page.select_option("#model", model)
        self.page.wait_for_function("old => !old.isConnected", arg=old)

    def panel(self, name: str) -> Any:
        return self.page.locator(f"section[data-panel='{name}']")

    def run(self, name: str) -> str:
        """Run a panel with its suggested texts; returns the text of its answer."""
        panel = self.panel(name)
        panel.locator("button[type=submit]").click()
        panel.locator(".answer[aria-busy=false]").wait_for(state="attached")
        assert not panel.locator(".wrong").count(), f"{name}: {panel.locator('.wrong').inner_text()}"
        return str(panel.locator(".answer").inner_text())

    def panels(self) -> list[str]:
        """The names of the panels on the page."""
        return [str(one.get_attribute("data-panel")) for one in self.page.locator("section").all()]

    def overflow(self) -> int:
        """The number of pixels by which the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def violations(self) -> list[str]:
        """The serious and critical violations that axe-core finds."""
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
