"""The browser, the two clusters, and the line that ends a run.

TANDEMMQ_REQUIRE_CONSOLE=1 (`make console`) means that Chromium, Java and Maven have to be there and that a
skipped case is a failure; without it, the cases are skipped where a tool is missing.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "interop"))

NEEDED = ("playwright", "axe_playwright_python", "starlette")
IS_REQUIRED = os.environ.get("TANDEMMQ_REQUIRE_CONSOLE") == "1"
SITES = ("ours", "java")
collect_ignore_glob = [] if all(map(find_spec, NEEDED)) else ["test_*.py"]

if not collect_ignore_glob:
    from browser import LOOKS, PICTURES, Look, Reader, find_chromium, open_browser, open_reader
    from console_tally import ConsoleTally
    from java_peers import missing_tools
    from playwright.sync_api import Browser
    from sites import Site, open_java, open_ours

    TALLY = pytest.StashKey[ConsoleTally]()


def absent() -> list[str]:
    """Returns what a run lacks."""
    return [*missing_tools(), *([] if find_chromium() else ["chromium"])]


def pytest_configure(config: pytest.Config) -> None:
    if not collect_ignore_glob:
        config.stash[TALLY] = ConsoleTally()
    elif IS_REQUIRED:
        pytest.exit(f"one of {', '.join(NEEDED)} is missing: run `make console`", returncode=1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanted = [item for item in items if item.get_closest_marker("console")]
    if not wanted or not (missing := absent()):
        return
    if IS_REQUIRED:
        pytest.exit(f"missing: {', '.join(missing)}", returncode=1)
    for item in wanted:
        item.add_marker(pytest.mark.skip(reason=f"missing: {', '.join(missing)}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if item.get_closest_marker("console"):
        item.config.stash[TALLY].add(item, report)  # type: ignore[arg-type]
    return report  # type: ignore[return-value]


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Prints the last line of a run that requires all cases."""
    tally = config.stash.get(TALLY, None) if not collect_ignore_glob else None
    if IS_REQUIRED and tally is not None and tally.has_run and not config.option.collectonly:
        print("", f"pictures: {PICTURES}", tally.closing_line(), sep="\n")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if IS_REQUIRED and session.exitstatus == 0 and session.config.stash[TALLY].failed:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="session", params=SITES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    shutil.rmtree(PICTURES / request.param, ignore_errors=True)
    opener = open_ours if request.param == "ours" else open_java
    with opener(tmp_path_factory.mktemp(request.param)) as opened:
        yield opened
        opened.load.check()


@pytest.fixture(scope="session")
def readers(browser: Browser, site: Site) -> Iterator[dict[str, Reader]]:
    """A window per look, logged in if the cluster has users."""
    opened = {look.name: open_reader(browser, site.name, site.url, look) for look in LOOKS}
    for reader in opened.values():
        log_in(reader, site)
    yield opened
    for reader in opened.values():
        reader.context.close()


def log_in(reader: Reader, site: Site) -> None:
    """Logs in by the page, if the cluster has users."""
    if site.user is None:
        return
    reader.visit("/login")
    reader.page.get_by_label("Name or access key").fill(site.user[0])
    reader.page.get_by_label("Secret").fill(site.user[1])
    reader.page.get_by_role("button", name="Log in").click()
    reader.page.wait_for_url(lambda url: "/login" not in url)


@pytest.fixture
def open_look(browser: Browser, site: Site) -> Iterator[object]:
    """A function that opens a window of its own in a look, logged in."""
    opened: list[Reader] = []

    def open_one(look: Look) -> Reader:
        reader = open_reader(browser, site.name, site.url, look)
        opened.append(reader)
        log_in(reader, site)
        return reader

    yield open_one
    for reader in opened:
        reader.context.close()
