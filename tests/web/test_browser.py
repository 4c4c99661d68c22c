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
from pyiceberg.utils.config import Config
from website.reference import ROOT

import lithify
from lithify.api.client import settled
from lithify.base.clock import SystemClock
from lithify.testing.engine import InlineEngine
from lithify.web import serving
from lithify.web.app import application
from lithify.web.dashboard import TABS, Dashboard
from tests.datasets.iceberg.tables import append, make_rows, new_catalog, new_table
from tests.datasets.kafka.test_commands import make_log
from tests.web.dashboards import TOKEN, page_of, write_database
from tests.web.fleets import kept
from tests.web.poses import DATABASE, TABLE, Compacting, Posing, led
from tests.web.test_beside import get, until

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


def compacted_twice(path: Path) -> str:
    """A database with two commits, and some L0 SSTs that wait; its URL."""
    url = write_database(path)
    for _ in range(2):
        with lithify.open(url, engine=InlineEngine()) as opened:
            opened.compact(full=True, take_over=True)
        write_database(path)
    return url


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Such a one."""
    return compacted_twice(tmp_path_factory.mktemp("dashboard") / "db")


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


WIDE, NARROW = {"width": 1200, "height": 900}, {"width": 390, "height": 800}
LOOKS = [("light", WIDE), ("dark", WIDE), ("light", NARROW), ("dark", NARROW)]
PAGES = ("fleet", "queue", "overview", "table", "table-plan", "log", "database", *filter(None, TABS))
CUT = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
TARGETS = """[...document.querySelectorAll(
    'a[href], button, select, input:not([type=hidden]), [tabindex="0"]')].filter(e => e.checkVisibility())"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """The dashboard of a fleet without workers, of a database in which a compaction waits and another was
    cancelled, a table and a log; where it is, and the path of each of `PAGES`."""
    folder = tmp_path_factory.mktemp("fleet")
    url = compacted_twice(folder / "tenants" / "red" / "db")
    with lithify.open(url) as opened:
        opened.submit(full=True).cancel()
    log = f"kafka+file://{make_log(folder / 'backup' / 'orders-0')}"
    paths = {"overview": "/", "fleet": "/fleet", "queue": "/queues/default", "database": page_of(url)}
    paths |= {"table": page_of(TABLE), "table-plan": page_of(TABLE, "plan"), "log": page_of(log)}
    paths |= {tab: page_of(url, tab) for tab in TABS if tab}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{folder}/catalog.db")
        patch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        append(new_table(new_catalog(folder, name="lake")), make_rows(5))
        with kept(folder, log, works=False) as (_, where):
            until(lambda: all(dataset in get(where, "/") for dataset in (url, TABLE, log)))
            until(lambda: "default" in get(where, "/fleet"))
            until(lambda: "awaiting" in get(where, paths["table"]))
            until(lambda: all("cannot be read" not in get(where, path) for path in paths.values()))
            yield where.rstrip("/"), paths


@pytest.fixture(scope="module")
def fleet(browser: Any, shown: tuple[str, dict[str, str]]) -> Iterator[Any]:
    """A page that is logged in there."""
    yield from opened(browser, shown[0])


def judge(page: Any, name: str) -> None:
    """What axe finds of it in every look, and whether it fits; a picture of each is kept."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for scheme, size in LOOKS:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        result = axe.Axe().run(page)
        assert result.violations_count == 0, f"{scheme} {size}: {result.generate_report()}"
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
            "sideways scrolling"
        )
        assert page.evaluate(CUT) == 0, "sideways scrolling of a table"
        keep(page, f"{name}-{scheme}" + ("-phone" if size is NARROW else ""))


def reach(page: Any) -> None:
    """Tab leads to everything that can be used, in its order, and shows where it is."""
    wanted = page.evaluate(f"{TARGETS}.length")
    page.evaluate("document.activeElement.blur()")
    found = []
    for _ in range(wanted):
        page.keyboard.press("Tab")
        found.append(page.evaluate(f"{TARGETS}.indexOf(document.activeElement)"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert found == list(range(wanted))


@pytest.mark.parametrize("name", PAGES)
def test_everybody_can_use_a_page(fleet: Any, shown: tuple[str, dict[str, str]], name: str) -> None:
    """In light and dark colours, at a desk and on a phone, by keyboard alone."""
    where, paths = shown
    fleet.set_viewport_size(WIDE)
    fleet.goto(where + paths[name])
    fleet.wait_for_selector("#live:has-text('Live')")
    fleet.wait_for_selector("main:not(:has-text('is being read'))")
    if name == "history":
        fleet.wait_for_selector("#charts canvas")
    judge(fleet, name)
    reach(fleet)


def test_a_fleet_leads_to_its_queues(fleet: Any, shown: tuple[str, dict[str, str]]) -> None:
    fleet.goto(f"{shown[0]}/fleet")
    fleet.wait_for_selector("main:has-text('alive')")
    fleet.get_by_role("link", name="default").focus()
    fleet.keyboard.press("Enter")
    fleet.wait_for_selector("h1:has-text('Queue default')")
    fleet.wait_for_selector("td:has-text('active')")


def test_the_keyboard_leads_everywhere(page: Any, database: str) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    page.wait_for_selector("#main:focus")  # a browser moves it with its next picture
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
    page.get_by_role("link", name="Go back").click()
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
        judge(page, "ranges")
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
    page.wait_for_selector("#charts > :nth-child(3) canvas")
    until(
        lambda: page.evaluate("Object.values(window.written).flat().length > 6")
    )  # a policy forbids waiting
    for labels in page.evaluate("Object.values(window.written)"):
        assert len(labels) == len(set(labels)), labels


def test_charts_follow_the_colours_of_the_machine(page: Any, where: str, database: str) -> None:
    """Which may turn dark while a page is open."""
    page.add_init_script(
        """window.inks = [];
        const draw = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (...given) {
          window.inks.push(this.fillStyle);
          return draw.apply(this, given);
        };"""
    )
    inks = []
    page.goto(where + page_of(database, "history"))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        until(lambda: page.evaluate("window.inks.length > 6"))
        inks.append(set(page.evaluate("window.inks.splice(0)")))
    assert inks[0].isdisjoint(inks[1])


def test_without_scripts_everything_is_there(browser: Any, where: str, database: str) -> None:
    pages = opened(browser, where, java_script_enabled=False)
    found = next(pages)
    found.get_by_role("link", name=database).first.click()
    found.wait_for_selector("svg[role=img]")
    found.get_by_role("link", name="History").click()
    found.wait_for_selector("caption:has-text('Commits')")
    assert next(pages, None) is None
