"""Headless Chromium as a reader of the console: what it sees is checked on every page and kept as a picture.

The pictures are in `build/console` of the checkout, by cluster, page and look.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Response, sync_playwright

PICTURES = Path(__file__).parents[2] / "build" / "console"
CHROMIUM = ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 20_000
SERVER_MS_MAX = 300.0
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
"""The rules of axe-core: WCAG 2.2 at the levels A and AA, and its advice."""


@dataclass(frozen=True)
class Look:
    """One way to see a page."""

    name: str
    width: int
    height: int
    scheme: str
    zone: str = "UTC"


LIGHT = Look("light", 1280, 860, "light")
DARK = Look("dark", 1280, 860, "dark")
PHONE = Look("phone", 360, 780, "light")
LOOKS = (LIGHT, DARK, PHONE)
KOLKATA = Look("kolkata", 1280, 860, "light", "Asia/Kolkata")


def find_chromium() -> str | None:
    """Returns the installed browser; None if there is none."""
    return next((path for name in CHROMIUM if (path := shutil.which(name))), None)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Starts the installed Chromium; no browser is downloaded."""
    path = find_chromium()
    assert path is not None, "no Chromium is installed: run `scripts/setup chromium` as root"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Reader:
    """A browser window in one look, logged in or not. Faults that the browser reports are collected."""

    context: BrowserContext
    page: Page
    look: Look
    url: str
    pictures: Path
    faults: list[str] = field(default_factory=list)

    def visit(self, path: str) -> Response:
        """Loads the page and returns its answer, whatever its status."""
        response = self.page.goto(self.url + path, wait_until="load")
        assert response is not None
        return response

    def visit_answered(self, path: str) -> Response:
        """Loads the page until all brokers have answered lately: a busy machine's answer late."""
        end = time.monotonic() + PATIENCE_MS / 1000
        while True:
            response = self.visit(path)
            if self.page.locator(".silent").count() == 0 or time.monotonic() > end:
                return response
            self.page.wait_for_timeout(500)

    def check(self, name: str) -> None:
        """Checks the page that is shown, and takes its picture.

        Raises:  AssertionError for a finding of axe-core, a page wider than the window, an executed text, or
                 a fault that the browser reported.
        """
        self.take_picture(name)
        assert self.page.evaluate("window.hacked") is None, "a text from the cluster ran as a script"
        wide = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"the page is {wide} px wider than the window of {self.look.width} px"
        findings = self.find_barriers()
        assert not findings, "axe-core found barriers:\n" + "\n".join(findings)
        assert self.page.locator("h1").count() == 1, "a page has one h1"
        faults, self.faults[:] = list(self.faults), []
        assert not faults, "the browser reported:\n" + "\n".join(faults)

    def find_barriers(self) -> list[str]:
        """Returns the findings of axe-core on the page that is shown."""
        script = resources.files("axe_playwright_python") / "axe.min.js"
        # The page's policy forbids scripts of others, so axe-core is evaluated in the page by the browser.
        self.page.evaluate(script.read_text(encoding="utf-8"))
        result = self.page.evaluate("rules => axe.run(document, rules)", RULES)
        return [
            f"{found['id']} ({found['impact']}): {found['help']}: {node['html'][:200]} {_reason(node)}"
            for found in result["violations"]
            for node in found["nodes"][:3]
        ]

    def take_picture(self, name: str) -> Path:
        """Takes a picture of the whole page."""
        path = self.pictures / self.look.name / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path, full_page=True)
        return path


def _reason(node: dict[str, Any]) -> str:
    return " ".join(str(node.get("failureSummary", "")).split())[:300]


def open_reader(browser: Browser, site_name: str, url: str, look: Look) -> Reader:
    """Opens a window in this look."""
    context = browser.new_context(
        viewport={"width": look.width, "height": look.height},
        color_scheme=look.scheme,  # type: ignore[arg-type]  # light or dark
        timezone_id=look.zone,
        locale="en-GB",
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    reader = Reader(context, page, look, url, PICTURES / site_name)

    def on_console(message: ConsoleMessage) -> None:
        # A page that the test asks for may have an error as its status; the browser reports that, too.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            reader.faults.append(f"{message.type}: {message.text}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: reader.faults.append(f"script error: {error}"))
    page.on("requestfailed", lambda request: _on_failed(reader, request))
    return reader


def _on_failed(reader: Reader, request: Any) -> None:
    # A refresh that a navigation overtakes is aborted.
    if "net::ERR_ABORTED" not in str(request.failure):
        reader.faults.append(f"{request.url} failed: {request.failure}")


def server_ms(response: Response) -> float:
    """Returns the time that the server took for the page, from its Server-Timing header."""
    text = response.all_headers().get("server-timing", "")
    found = re.search(r"\bpage;dur=([\d.]+)", text)
    assert found, f"no Server-Timing in the answer: {text!r}"
    return float(found[1])


def picture_name(path: str) -> str:
    """Returns a page's path as a file name."""
    return re.sub(r"[^\w]+", "-", path).strip("-") or "overview"
