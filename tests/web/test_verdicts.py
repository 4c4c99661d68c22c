"""Verdicts: a dataset that fails never looks healthy, and each concern names what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import lithify
from lithify.base.backlog import Backlog
from lithify.base.errors import StoreUnavailable
from lithify.base.ids import Ulid
from lithify.fleet.catalog.changes import first_catalog
from lithify.fleet.catalog.files import Numbered
from lithify.fleet.members import Amounts, FleetMember, FleetRole, ListedMember, Load
from lithify.fleet.status import FleetStatus, MemberStatus, QueueStatus
from lithify.planning.fleet.waits import Waits
from lithify.protocol.attempts import FailedAttempt
from lithify.protocol.presence import CoordinatorStatus, Presence
from lithify.protocol.proposal import Plan, Proposal
from lithify.protocol.retained import Past, Retained
from lithify.protocol.status import Status
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine
from lithify.watermarks.model import Needed
from lithify.web.dashboard import ListQuery
from lithify.web.verdicts import DatasetLevel, judge, outlook
from tests.web.dashboards import NOW_MS, read, shown, write_database
from tests.web.test_pages import compaction

URL = "s3://bucket/it's a db"
ID = Ulid("01M7Y73N1RT45V6YVXGPSA14XX")
ALIVE = CoordinatorStatus(Presence.ALIVE, 3, "lithify-x")
WORK = Plan((Proposal(None, 0.5, 4_000_000, "four L0 SSTs"),))
FAILURE = FailedAttempt(ID, "<b>out</b> of memory", 3, NOW_MS - 7_200_000, "", unit="root")


def status(**given: Any) -> Status:
    return Status(**{
        "url": URL, "at_ms": NOW_MS, "snapshot": None, "coordinator": ALIVE, "compactions": (),
        "plan": Plan(), "backlog": (), "failures": (), "store_ms": NOW_MS, **given,
    })  # fmt: skip


def test_a_dataset_without_work_is_well() -> None:
    verdict = judge(URL, status())
    assert (verdict.level, verdict.says, verdict.concerns) == (
        DatasetLevel.WELL,
        "Nothing has to be done.",
        (),
    )


def test_work_under_way_is_working() -> None:
    verdict = judge(URL, status(compactions=(compaction(),), plan=WORK))
    assert verdict.level is DatasetLevel.WORKING
    assert verdict.says == "1 compaction under way and 1 compaction waiting, 6.5 MB left to read."
    assert not verdict.concerns


FAILING: dict[str, dict[str, Any]] = {
    "a failure": {"failures": (FAILURE,)},
    "a stall": {"backlog": (Backlog("root", 8, 8, 0),)},
    "a silent worker": {"compactions": (compaction(is_stale=True),)},
    "a lost coordinator": {"coordinator": CoordinatorStatus(Presence.LOST, 3, "x", NOW_MS - 1), "plan": WORK},
    "no coordinator": {"coordinator": CoordinatorStatus(Presence.STOPPED, 3), "compactions": (compaction(),)},
    "stuck": {"plan": Plan(stuck=("one file is encrypted",))},
    "lost records": {"retained": Retained(Past(1, NOW_MS, 0), lost="the hold x")},
}  # fmt: skip


@pytest.mark.parametrize("name", FAILING)
def test_a_failing_dataset_never_looks_healthy(name: str) -> None:
    """Whatever else is under way."""
    given = FAILING[name]
    for more in ({}, {"compactions": (*given.get("compactions", ()), compaction(id="0" * 26))}):
        verdict = judge(URL, status(**{**given, **more}))
        assert verdict.level is DatasetLevel.FAILING
        first = verdict.concerns[0]
        assert first.is_problem
        assert first.do
        assert verdict.says == first.says


WARNED: dict[str, dict[str, Any]] = {
    "work that nothing coordinates": {"coordinator": CoordinatorStatus(Presence.NEVER, 0), "plan": WORK},
    "a writer that nothing coordinates": {
        "coordinator": CoordinatorStatus(Presence.STOPPED, 3), "backlog": (Backlog("root", 1, 8, 60_000),)
    },
    "near the limit": {"backlog": (Backlog("root", 7, 8, None),)},
    "retried": {"compactions": (compaction(attempts=2, last_failure="x"),)},
    "history kept for good": {"retained": Retained(Past(1, NOW_MS, 0), blocked=("gc.enabled is false",))},
}  # fmt: skip


@pytest.mark.parametrize("name", WARNED)
def test_a_warning_is_a_concern_of_any_level(name: str) -> None:
    verdict = judge(URL, status(**WARNED[name]))
    assert verdict.level is not DatasetLevel.FAILING
    assert [concern.is_problem for concern in verdict.concerns] == [False]


def test_a_cancelled_compaction_is_no_concern() -> None:
    assert judge(URL, status(failures=(replace(FAILURE, is_cancelled=True),))).level is DatasetLevel.WELL


def test_commands_can_be_pasted_and_name_the_fleet() -> None:
    (failure,) = judge(URL, status(failures=(FAILURE,))).concerns
    assert failure.command == """lithify retry 's3://bucket/it'"'"'s a db' SA14XX"""
    assert failure.since_ms == FAILURE.at_ms
    idle = status(coordinator=CoordinatorStatus(Presence.STOPPED, 3), plan=WORK)
    assert judge(URL, idle).concerns[0].command.startswith("lithify run ")
    assert not judge(URL, idle, of_fleet="s3://bucket/fleet").concerns, "the fleet is judged as a whole"


def test_how_long_is_unknown_until_something_moves() -> None:
    found = status(compactions=(compaction(remaining_ms=None),))
    assert "unknown until bytes move" in outlook(found, None)[0]
    assert "unknown before the first commit" in outlook(found, None)[1]
    assert "in about 10s" in outlook(status(compactions=(compaction(),)), None)[0]
    assert "takes about 4s" in outlook(status(plan=WORK), 1_000_000.0)[0]
    assert outlook(status(), None) == ("Nothing is under way, and nothing waits.",)


# Pages


def opened_with(found: Callable[[str], Status]) -> Callable[[str], lithify.api.client.Dataset]:
    """Datasets whose status is given by their URL."""

    class Given(lithify.api.client.Dataset):
        def status(self) -> Status:
            return found(self.url)

    def open_given(url: str) -> lithify.api.client.Dataset:
        opened = lithify.open(url)
        opened.__class__ = Given
        return opened

    return open_given


def backlog_of(url: str, **given: Any) -> tuple[Backlog, ...]:
    """The backlog of a database, changed."""
    with lithify.open(url) as opened:
        return tuple(replace(one, **given) for one in opened.status().backlog)


def follow(client: TestClient, start: str, *links: str) -> str:
    """The text of the page behind these links, each by its words."""
    html = client.get(start).text
    for words in links:
        before = html.partition(f">{words}</a>")[0]
        assert before != html, f"no link {words!r}"
        html = client.get(before.rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")).text
    return str(read(html).text)


def test_an_operators_eight_questions_are_answered_within_two_clicks(tmp_path: Path) -> None:
    """By the links of the first page."""
    url = write_database(tmp_path / "db")
    with lithify.open(url, engine=InlineEngine(), clock=ManualClock(NOW_MS - 120_000)) as opened:
        opened.compact(full=True, take_over=True)
    held = Retained(
        Past(12, NOW_MS - 86_400_000, 5_000_000), (Needed(NOW_MS, "hold of ann", NOW_MS - 3_600_000),)
    )
    found = status(
        failures=(FAILURE,), compactions=(compaction(),), retained=held, url=url,
        backlog=backlog_of(url, waiting=2, stall_ms=90_000),
    )  # fmt: skip
    with shown([url], clock=ManualClock(NOW_MS), open_dataset=opened_with(lambda _: found)) as client:
        home, dataset = follow(client, "/"), follow(client, "/", url)
        history, failures = (follow(client, "/", url, words) for words in ("the last commits", "Failures"))
    for page in (home, dataset):
        what = "Compaction SA14XX of root was given up after 3 attempts: <b>out</b> of memory"
        assert what in page, "what is wrong, and why"
        assert "since 2023-11-14 20:13:20 UTC" in page, "since when"
        assert f"lithify retry {url} SA14XX" in page, "what next"
    assert "<b>out</b> of memory" in failures, "why"
    assert "mend the cause that the reason names, then retry it" in failures, "what next"
    assert "Running compactions end in about 10s." in dataset, "how long"
    assert "The writer stalls in 1m 30s if nothing is compacted." in dataset, "how long"
    assert "Who holds history" in dataset
    assert "hold of ann since 2023-11-14 21:13:20 UTC" in dataset, "who holds history"
    assert re.search(r"Saved\d+ B of 1\.\d kB read", history), "what it saved"
    assert re.search(r"Cost: work.* of CPU Cost: written\d+ B", history), "what it costs"


def test_the_first_page_counts_sorts_and_filters(tmp_path: Path) -> None:
    url = write_database(tmp_path / "db")
    cases: dict[str, dict[str, Any]] = {
        "well": {},
        "busy": {"compactions": (compaction(),)},
        "bad": {"failures": (FAILURE,)},
        "full": {"backlog": backlog_of(url, waiting=7)},
    }
    statuses = {name: status(url=url, **given) for name, given in cases.items()}
    names, url_of_all = {f"s3://b/{name}": name for name in (*statuses, "away")}, url

    class Given(lithify.api.client.Dataset):
        name = ""

        def status(self) -> Status:
            return statuses[self.name]

    def open_given(url: str) -> lithify.api.client.Dataset:
        if names[url] == "away":
            raise StoreUnavailable("the store is away")
        opened = lithify.open(url_of_all)
        opened.__class__ = Given
        opened.name = names[url]  # type: ignore[attr-defined]
        return opened

    def listed(client: TestClient, **asked: str) -> list[str]:
        return [names[one["url"]] for one in client.get("/api/datasets", params=asked).json()["datasets"]]

    with shown(list(names), clock=ManualClock(NOW_MS), open_dataset=open_given) as client:
        home = read(client.get("/").text).text
        assert "2 well 1 working 1 failing 1 unreadable Needs attention" in home
        order = [home.index(f"s3://b/{name}") for name in ("bad", "away", "full")]
        assert order == sorted(order), "the worst first"
        assert client.get("/api/datasets").json()["counts"] == {
            "failing": 1, "unreadable": 1, "unread": 0, "working": 1, "well": 2,
        }  # fmt: skip
        assert listed(client, state="failing") == ["bad"]
        assert listed(client, state="attention") == ["bad", "full", "away"]
        assert listed(client, sort="severity") == ["bad", "away", "busy", "full", "well"]
        assert listed(client, sort="work")[0] == "busy"
        assert listed(client, sort="backlog")[0] == "full"
        assert listed(client, sort="name") == ["away", "bad", "busy", "full", "well"]
        assert (len(listed(client, kind="database")), listed(client, kind="table")) == (5, [])
        assert listed(client, tenant="x") == []
        for wrong in ({"state": "<x>"}, {"sort": "x"}, {"kind": "é"}):
            assert len(listed(client, **wrong)) == 5, "an unknown value filters nothing"
        saved = client.get("/datasets", params={"state": "well", "sort": "work", "q": "s3"}).text
        assert "<option selected>well</option>" in saved
        assert 'value="work" selected' in saved


def test_datasets_that_no_page_shows_are_read_for_the_figures() -> None:
    """The stalest first, as many as the time since the last look allows."""
    urls, clock, opened = [f"s3://bucket/{n:05}/db" for n in range(120)], ManualClock(NOW_MS), set[str]()

    def away(url: str) -> lithify.api.client.Dataset:
        opened.add(url)
        raise StoreUnavailable("away")

    with shown(urls, clock=clock, open_dataset=away) as client:
        first = read(client.get("/").text).text
        assert "are not read yet" in first
        assert opened <= set(urls[:100])
        for _ in range(8):
            clock.advance_s(1)
            client.get("/api/datasets")
        assert len(opened) == 120
        assert "120 unreadable" in read(client.get("/").text).text


# A fleet


def fleet_status(at_ms: int) -> FleetStatus:
    """One worker with two slots, of which one runs; the coordinator's tenants have work."""
    catalog = first_catalog("Q1")
    waiting = Amounts(running=1, waiting=3, waiting_bytes=3_000_000, backlog_ms=120_000, waits=Waits())
    works = Load(2, 1_000_000, tenants={"red": Amounts(running=1)})
    worker = FleetMember("worker-1", FleetRole.WORKER, "h", "1", 1, load={"Q1": works})
    leader = FleetMember(
        "coordinator-1", FleetRole.COORDINATOR, "h", "1", 1, datasets=2,
        load={"Q1": Load(tenants={"red": replace(waiting, running=0)})},
        quarantined=1, troubled={"s3://b/<i>x</i>": "it is <b>damaged</b>"},
    )  # fmt: skip
    members = tuple(MemberStatus(ListedMember(m.name, m.role, at_ms, 0, m), m) for m in (worker, leader))
    queue = QueueStatus(catalog.queues[0], (), 1, 2, 0, {"red": waiting})
    return FleetStatus("s3://b/fleet", at_ms, Numbered(1, catalog), members, (queue,), 0)


def test_a_fleets_page_says_what_is_left_how_long_and_how_old_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = lithify.Fleet(str(tmp_path / "fleet"))
    fleet.init()
    fleet.add("s3://b/one/db", tenant="red")
    monkeypatch.setattr(fleet, "status", lambda: fleet_status(NOW_MS - 42_000))

    def away(url: str) -> lithify.api.client.Dataset:
        raise StoreUnavailable("away")

    with shown([], fleet=fleet, clock=ManualClock(NOW_MS), open_dataset=away) as client:
        home = client.get("/").text
        page = client.get("/fleet").text
        told = read(page).text
        assert "Left3 waiting, 3.0 MB Running1" in told
        assert "Rate1.0 MB/s Time to drain1m" in told
        assert "red01" in told, "a tenant whose dataset cannot be read"
        assert "tenant=red" in page
        assert "42s before this page was made" in told
        for html in (home, page):
            assert "s3://b/&lt;i&gt;x&lt;/i&gt; is quarantined: it is &lt;b&gt;damaged" in html
        assert "s3://b/one/db" in follow(client, "/fleet", "red")
    assert ListQuery().path(tenant="\udcff&x") == "/datasets?tenant=%3F%26x", "any text can be linked to"
