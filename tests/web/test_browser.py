"""A real browser: every page by keyboard, dark, narrow, live while a compaction runs; judged by axe.

It needs Chromium or Chrome, of the machine; without one these tests are skipped. Pictures of the pages are
kept in the folder that the variable `SCREENSHOTS` names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import lithify
from lithify.client import settled
from lithify.testing.engine import InlineEngine
from lithify.web import serving
from lithify.web.dashboard import TABS
from tests.web.dashboards import TOKEN, page_of, write_database

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
WAIT_MS = 20_000

playwright = pytest.importorskip("playwright.sync_api", reason="install playwright: make install")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With two commits, and some L0 SSTs that wait."""
    folder = tmp_path_factory.mktemp("dashboard")
    url = write_database(folder / "db")
    for _ in range(2):
        with lithify.open(url, engine=InlineEngine()) as opened:
            opened.compact(full=True, take_over=True)
        write_database(folder / "db")
    return url


@pytest.fixture(scope="module")
def where(database: str) -> Iterator[str]:
    """Its dashboard, with a token."""
    config = settled({"web.token": TOKEN, "web.port": 0})
    with serving.served([database], None, config) as found:
        yield found.rstrip("/")


@pytest.fixture
def page(browser: Any, where: str) -> Iterator[Any]:
    """A page that is logged in. Whatever a browser complains of, or asks of another host, is an error."""
    yield from opened(browser, where)


def opened(browser: Any, where: str, **options: Any) -> Iterator[Any]:
    context = browser.new_context(**options)
    context.set_default_timeout(WAIT_MS)
    found = context.new_page()
    wrong: list[str] = []
    host = urlsplit(where).netloc

    def hear(said: Any) -> None:
        if said.type in ("error", "warning"):
            wrong.append(said.text)

    def see(asked: Any) -> None:
        if urlsplit(asked.url).netloc != host:
            wrong.append(asked.url)

    found.on("console", hear)
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on("request", see)
    found.goto(f"{where}/")
    found.get_by_label("Token").fill(TOKEN)
    found.get_by_role("button", name="Log in").click()
    found.wait_for_selector("h1:has-text('Datasets')")
    yield found
    assert wrong == []
    context.close()


def keep(page: Any, name: str) -> None:
    """A picture of a page, if somebody wants some."""
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"dashboard-{name}.png", full_page=True)


PAGES = ["/", *TABS]


@pytest.mark.parametrize("tab", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_a_page(browser: Any, where: str, database: str, tab: str, scheme: str) -> None:
    """What axe finds, in light and dark colours; it fits a phone."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    narrow = {"width": 390, "height": 800} if scheme == "dark" else {"width": 1200, "height": 900}
    pages = opened(browser, where, color_scheme=scheme, viewport=narrow)
    found = next(pages)
    found.goto(where + (tab if tab == "/" else page_of(database, tab)))
    found.wait_for_selector("#live:has-text('Live')")
    if tab == "history":
        found.wait_for_selector("#charts canvas")
    result = axe.Axe().run(found)
    assert result.violations_count == 0, result.generate_report()
    assert found.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
        "no sideways scrolling"
    )
    keep(found, f"{tab.strip('/') or ('overview' if tab else 'dataset')}-{scheme}")
    assert next(pages, None) is None


def test_the_keyboard_leads_everywhere(page: Any, database: str) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == database:
            break
    page.keyboard.press("Enter")
    page.wait_for_selector(f"h1:has-text('{database}')")


def test_a_page_lives_while_things_change_and_actions_work(page: Any, where: str, database: str) -> None:
    """Submitted elsewhere, it appears; cancelled and retried here, with a confirmation each."""
    page.goto(where + page_of(database, "running"))
    page.wait_for_selector("text=No compaction is under way.")
    page.wait_for_selector("#live:has-text('Live')")
    page.get_by_role("link", name="Failures").focus()
    with lithify.open(database) as other:
        other.submit(full=True)
    page.wait_for_selector("progress")
    assert page.evaluate("document.activeElement.textContent") == "Failures", "the focus stays"
    page.get_by_role("link", name="Cancel …").click()
    page.get_by_role("button", name="Cancel this compaction").click()
    page.wait_for_selector("text=Cancelled.")
    page.wait_for_selector("text=No compaction is under way.")
    page.get_by_role("link", name="Failures").click()
    page.get_by_role("link", name="Retry").click()
    page.get_by_role("link", name="No, go back").click()
    page.get_by_role("link", name="Failures").click()
    page.get_by_role("link", name="Retry").click()
    page.get_by_role("button", name="Retry this compaction").click()
    page.wait_for_selector("text=Submitted again.")
    page.wait_for_selector("progress")
    with lithify.open(database, engine=InlineEngine()) as other:
        other.compact(take_over=True)
    page.wait_for_selector("text=No compaction is under way.")


def test_without_scripts_everything_is_there(browser: Any, where: str, database: str) -> None:
    pages = opened(browser, where, java_script_enabled=False)
    found = next(pages)
    found.get_by_role("link", name=database).click()
    found.wait_for_selector("svg[role=img]")
    found.get_by_role("link", name="History").click()
    found.wait_for_selector("caption:has-text('Commits')")
    assert next(pages, None) is None
