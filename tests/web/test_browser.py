"""A real browser: every page by keyboard, dark, narrow, live while a compaction runs; judged by axe.

It needs Chromium or Chrome, of the machine; without one these tests are skipped. Pictures of all pages are
kept in build/screenshots. Those of the documentation, in docs/pictures, are made by `make pictures`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from website.reference import ROOT

import lithify
from lithify.client import settled
from lithify.clock import SystemClock
from lithify.testing.engine import InlineEngine
from lithify.web import serving
from lithify.web.app import application
from lithify.web.dashboard import TABS, Dashboard
from tests.web.dashboards import TOKEN, page_of, write_database
from tests.web.poses import DATABASE, TABLE, Compacting, Posing, led

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SCREENSHOTS = ROOT / "build" / "screenshots"
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


def opened(browser: Any, where: str, *, token: str = TOKEN, **options: Any) -> Iterator[Any]:
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
    if token:
        found.get_by_label("Token").fill(token)
        found.get_by_role("button", name="Log in").click()
    found.wait_for_selector("h1:has-text('Datasets')")
    yield found
    assert wrong == []
    context.close()


def keep(page: Any, name: str) -> None:
    """A picture of a page."""
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


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
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert found.evaluate(cut) == 0, "nor of a table"
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


def test_bars_move_while_a_compaction_runs(browser: Any, tmp_path: Path) -> None:
    """As its tasks report bytes, without anything done in the browser; the overview says so too."""
    url = write_database(tmp_path / "db")
    running = Compacting(tmp_path / "db", ranges=4)
    with serving.served([url], None, settled({"web.token": TOKEN, "web.port": 0})) as where:
        pages = opened(browser, where.rstrip("/"))
        page = next(pages)
        page.wait_for_selector("text=compacting (1)")
        page.goto(where.rstrip("/") + page_of(url, "running"))
        page.wait_for_selector("#live:has-text('Live')")
        page.evaluate("window.stays = true")
        seen = [0.0]
        for share in (0.24, 0.96):
            running.move({0: share, 1: share / 2})
            page.wait_for_selector(f"p:has-text('({share * 1.5 / 4:.0%})')")
            seen.append(page.evaluate("document.querySelector('figure rect.done').width.baseVal.value"))
        assert seen == sorted(set(seen))
        assert page.evaluate("window.stays"), "it was never loaded anew"
        running.give_back()
        page.wait_for_selector("text=a free worker to claim it")
        assert next(pages, None) is None


def test_pictures_of_the_documentation(browser: Any, tmp_path: Path) -> None:
    """Made anew each time; `PICTURES` names the folder in which they are kept (`make pictures`)."""
    folder = Path(os.environ.get("PICTURES", tmp_path))
    posing = Posing(tmp_path)
    running = Compacting(tmp_path / "db")
    running.move(dict(enumerate((1.0, 1.0, 0.9, 0.7, 0.85, 0.4))))
    dashboard = Dashboard(posing.urls, posing.open, None, SystemClock())
    with led(tmp_path / "db"), serving.serving(lambda: application(dashboard)) as where:
        pages = opened(browser, where.rstrip("/"), token="", viewport={"width": 1000, "height": 500})
        page = next(pages)
        for name, path in PICTURES.items():
            page.goto(where.rstrip("/") + path)
            page.wait_for_selector("#live:has-text('Live')")
            page.wait_for_selector("main figure, main table, main canvas")
            told = page.inner_text("main")
            assert not re.search(re.escape(str(tmp_path)), told), "pictures tell nothing of this machine"
            page.screenshot(path=folder / f"{name}.png", full_page=True)
            shrink(folder / f"{name}.png")
        assert next(pages, None) is None
    assert {p.stem for p in DOCUMENTED.glob("*")} == PICTURES.keys(), "make pictures"
    assert sum(p.stat().st_size for p in DOCUMENTED.glob("*")) < MAX_PICTURES_BYTES


PICTURES = {
    "datasets": "/",
    "database": page_of(DATABASE),
    "running": page_of(DATABASE, "running"),
    "table": page_of(TABLE),
    "history": page_of(DATABASE, "history"),
}
"""By name: what they show."""
DOCUMENTED = ROOT / "docs" / "pictures"
MAX_PICTURES_BYTES = 250_000


def shrink(file: Path) -> None:
    """A page has few colours."""
    from PIL import Image

    with Image.open(file) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


def test_labels_of_charts_differ(page: Any, where: str, database: str) -> None:
    """Commits of a few bytes, seconds apart: no two labels of an axis are the same."""
    page.add_init_script(
        """window.written = {};
        const draw = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
          const charts = [...document.querySelectorAll("#charts canvas")];
          (window.written[charts.indexOf(this.canvas)] ??= []).push(text);
          return draw.call(this, text, ...place);
        };"""
    )
    page.goto(where + page_of(database, "history"))
    page.wait_for_function("document.querySelectorAll('#charts canvas').length === 3")
    page.wait_for_function("Object.values(window.written).flat().length > 6")
    for labels in page.evaluate("Object.values(window.written)"):
        assert len(labels) == len(set(labels)), labels


def test_without_scripts_everything_is_there(browser: Any, where: str, database: str) -> None:
    pages = opened(browser, where, java_script_enabled=False)
    found = next(pages)
    found.get_by_role("link", name=database).click()
    found.wait_for_selector("svg[role=img]")
    found.get_by_role("link", name="History").click()
    found.wait_for_selector("caption:has-text('Commits')")
    assert next(pages, None) is None
