"""Every page and the JSON of the same, as a browser without scripts gets them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import lithify
from lithify.base.errors import StoreUnavailable
from lithify.protocol.model import CompactionState
from lithify.protocol.presence import CoordinatorStatus, Presence
from lithify.protocol.proposal import Plan
from lithify.protocol.status import CompactionStatus, Status
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine
from lithify.web.dashboard import PER_PAGE, TABS, id_of
from lithify.web.rendering import draw_bars
from tests.cli.invoking import invoke_json
from tests.datasets.iceberg.tables import append, make_rows, new_catalog, new_table
from tests.datasets.kafka.test_commands import make_log
from tests.web.dashboards import BEARER, ORIGIN, TOKEN, page_of, read, shown, write_database


@pytest.fixture
def database(tmp_path: Path) -> str:
    return write_database(tmp_path / "db")


def test_every_page_is_whole(database: str) -> None:
    paths = ["/", "/datasets", "/login", *(page_of(database, tab) for tab in TABS)]
    with shown([database]) as client:
        for path in paths:
            answer = client.get(path)
            assert answer.status_code == 200, path
            tags = read(answer.text).tags
            names = [name for name, _ in tags]
            assert names.count("main") == names.count("h1") == 1, path
            assert answer.text.count("</title>\n") == 1, path
            assert ("html", {"lang": "en"}) in tags
            for name, attributes in tags:
                assert not any(a.startswith("on") or a == "style" for a in attributes), (
                    f"inline: {attributes}"
                )
                if name == "script":
                    assert (attributes.get("src") or "").startswith("/static/"), "inline script"
                if name == "th":
                    assert attributes.get("scope") in ("col", "row"), path
                if name == "svg":
                    assert attributes["role"] == "img"
                    assert attributes["aria-label"]
                if name in ("input", "meter", "progress") and attributes.get("type") != "hidden":
                    labelled = (
                        attributes.get("id"),
                        attributes.get("aria-label"),
                        attributes.get("aria-labelledby"),
                    )
                    assert any(labelled), f"{path}: {attributes}"
                for target in (attributes.get("href"), attributes.get("src"), attributes.get("action")):
                    assert target is None or target.startswith(("/", "#")), "nothing of another host"
            for static in (a.get("src") or a.get("href") for n, a in tags if n in ("script", "link")):
                assert client.get(str(static)).status_code == 200


def test_the_overview_shows_state_backlog_and_last_commit(database: str) -> None:
    clock = ManualClock(1_700_000_000_000)
    with lithify.open(database, engine=InlineEngine(), clock=clock) as opened:
        opened.compact(full=True, take_over=True)
    clock.advance_s(120)
    with shown([database], clock=clock) as client:
        text = read(client.get("/").text).text
    assert database in text
    assert "1 to 1 of 1 datasets" in text
    assert "idle" in text
    assert "0 of 8" in text
    assert "2m ago" in text


def test_a_dataset_is_drawn_with_a_legend(database: str) -> None:
    with shown([database]) as client:
        html = client.get(page_of(database)).text
    text = read(html).text
    assert "L0 SSTs and sorted runs by bytes" in text
    assert "SSTs: not affected" in text
    assert html.count('class="resting"') == 3 + 1, "an SST each, and the legend"
    assert "Coordinator" in text


def test_json_is_what_the_commands_print(database: str) -> None:
    with shown([database]) as client:
        for command in ("status", "plan", "history"):
            answer = client.get(f"/api{page_of(database, command)}")
            assert answer.headers["content-type"] == "application/json"
            assert lasting(answer.json()) == lasting(invoke_json(command, database))
        (listed,) = client.get("/api/datasets").json()["datasets"]
        assert (listed["id"], listed["url"]) == (id_of(database), database)
        assert listed["summary"]["state"] == "idle"


def test_a_table_is_drawn_over_time_with_its_zone(tmp_path: Path) -> None:
    append(new_table(new_catalog(tmp_path, name="lake")), make_rows(5))
    url, settings = "iceberg://lake/db.events", {"store_options.uri": f"sqlite:///{tmp_path}/catalog.db"}
    with shown([url], open_dataset=lambda wanted: lithify.open(wanted, settings=settings)) as client:
        dataset, plan = (client.get(page_of(url, tab)).text for tab in ("", "plan"))
        for html in (dataset, plan):
            told = read(html).text
            assert "chunks of one day (UTC)" in told
            assert "2025-01-01" in told
            assert "files over time" in told
            assert not re.search(r"\b0:(?!\d)", told), (
                "what a group is called is of use only where there are several"
            )
            assert re.search(r'<rect class="(awaiting|compacted|skipped)"', html)
        assert "<caption>Timeline: one chunk per day, UTC</caption>" in plan
        assert "of 1 datasets" in read(client.get("/").text).text
        for command in ("status", "plan"):
            printed = invoke_json(command, url, "--store-option", f"uri=sqlite:///{tmp_path}/catalog.db")
            assert lasting(client.get(f"/api{page_of(url, command)}").json()) == lasting(printed)


def test_a_log_is_shown_as_its_kind_says(tmp_path: Path) -> None:
    url = f"kafka+file://{make_log(tmp_path / 'backup' / 'orders-0')}"
    with shown([url]) as client:
        assert url in read(client.get("/").text).text
        for tab in TABS:
            answer = client.get(page_of(url, tab))
            assert (answer.status_code, "cannot be read now" in answer.text) == (200, False), answer.text
        assert "Shape" not in read(client.get(page_of(url)).text).text, "a heading of nothing"
        for command in ("status", "plan"):
            assert (
                client.get(f"/api{page_of(url, command)}").json().keys() == invoke_json(command, url).keys()
            )


def lasting(document: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on when it is asked."""
    return {name: document[name] for name in document if name not in ("at_ms", "stall_ms", "pressure")}


def test_the_api_describes_itself(database: str) -> None:
    """Every operation there is is described, and every described one is there."""
    with shown([database], token=TOKEN) as client:
        described = client.get("/api/openapi.json", headers=BEARER).json()
        assert described["openapi"].startswith("3.1")
        found = set()
        for path, operations in described["paths"].items():
            for method in operations:
                address = path.replace("{id}", id_of(database))
                body = json.dumps({"compactions": ["ZZZZZZ"]}) if method == "post" else None
                headers = {**BEARER, "content-type": "application/json"}
                answer = client.request(method.upper(), address, headers=headers, content=body)
                assert answer.status_code in (200, 409), f"{path}: {answer.text}"
                found.add((method, path))
        assert ("post", "/api/datasets/{id}/cancel") in found
        assert client.get("/api/nothing", headers=BEARER).json()["error"] == "Refused"


def test_what_is_not_there_is_not_found(database: str) -> None:
    with shown([database]) as client:
        for path in (
            "/datasets/none",
            "/datasets/none/plan",
            "/fleet",
            "/queues/x",
            f"{page_of(database)}/x",
        ):
            answer = client.get(path)
            assert answer.status_code == 404, path
        assert client.get("/api/datasets/none/status").status_code == 404
        assert client.get("/events", params={"of": "/datasets/none"}).status_code == 404
        assert client.get("/static/../app.py").status_code == 404


def test_a_store_that_is_away_leaves_what_was_known(database: str) -> None:
    clock, is_away = ManualClock(1_700_000_000_000), False

    class Away(lithify.api.client.Dataset):
        def status(self) -> Status:
            if is_away:
                raise StoreUnavailable("the store of <b>x</b> is away")
            return super().status()

    def open_away(url: str) -> lithify.api.client.Dataset:
        opened = lithify.open(url)
        opened.__class__ = Away
        return opened

    with shown([database], clock=clock, open_dataset=open_away) as client:
        assert "idle" in client.get(page_of(database)).text
        is_away = True
        clock.advance_s(3600)
        html = client.get(page_of(database)).text
        assert "idle" in html
        assert "the store of &lt;b&gt;x&lt;/b&gt; is away" in html
        assert "(read 1h ago)" in read(client.get("/").text).text


def test_what_never_could_be_read_says_why(tmp_path: Path) -> None:
    with shown([str(tmp_path / "nothing")]) as client:
        assert "no SlateDB database" in client.get("/").text
        assert "no SlateDB database" in client.get(page_of(str(tmp_path / "nothing"))).text
        answer = client.get(f"/api{page_of(str(tmp_path / 'nothing'), 'status')}")
        assert (answer.status_code, "no SlateDB database" in answer.json()["message"]) == (503, True)


# Many


def never(url: str) -> lithify.api.client.Dataset:
    raise StoreUnavailable(f"{url} is away")


def test_ten_thousand_datasets_are_shown_in_pages() -> None:
    urls = [f"s3://bucket/tenant-{n:05}/db" for n in range(10_000)]
    opened: list[str] = []

    def open_dataset(url: str) -> lithify.api.client.Dataset:
        opened.append(url)
        return never(url)

    with shown(urls, open_dataset=open_dataset) as client:
        first = client.get("/")
        assert "1 to 100 of 10000 datasets" in read(first.text).text
        assert "Page 1 of 100" in read(first.text).text
        last = read(client.get("/datasets", params={"page": "100"}).text)
        assert "9901 to 10000 of 10000" in last.text
        found = read(client.get("/datasets", params={"q": "tenant-0777"}).text)
        assert "1 to 10 of 10 datasets" in found.text
        for page in ("0", "-1", "x", "9" * 40, "½"):
            assert client.get("/datasets", params={"page": page}).status_code == 200
        assert set(opened) <= {*urls[:PER_PAGE], *urls[-PER_PAGE:], *(u for u in urls if "tenant-0777" in u)}


def test_more_viewers_cost_no_more_reads(database: str) -> None:
    clock, looks = ManualClock(1_700_000_000_000), 0

    class Counted(lithify.api.client.Dataset):
        def status(self) -> Status:
            nonlocal looks
            looks += 1
            return super().status()

    def open_counted(url: str) -> lithify.api.client.Dataset:
        opened = lithify.open(url)
        opened.__class__ = Counted
        return opened

    with shown([database], clock=clock, open_dataset=open_counted) as client:
        for _ in range(20):
            for path in (
                "/",
                page_of(database),
                page_of(database, "running"),
                f"/api{page_of(database, 'status')}",
            ):
                assert client.get(path).status_code == 200
        assert looks == 1
        clock.advance_s(60)
        assert looks == 1, "nobody looks"
        client.get("/")
        assert looks == 2


# What is under way


def compaction(**given: Any) -> CompactionStatus:
    return CompactionStatus(
        **{
            "id": "01M7Y73N1RT45V6YVXGPSA14XX",
            "unit": "root",
            "state": CompactionState.RUNNING,
            "submitted_ms": 0,
            "since_ms": 0,
            "worker": "lithify-01M7Y73N1RT45V6YVXGPSA14XX",
            "heartbeat_age_ms": 3000,
            "is_stale": False,
            "ranges": 4,
            "finished_ranges": 1,
            "cost_bytes": 4_000_000,
            "done_bytes": 1_500_000,
            "bytes_per_s": 250_000,
            "remaining_ms": 10_000,
            "attempts": 0,
            "last_failure": None,
            "waits_for": "",
            "range_shares": (1.0, 0.5, 0.0, 0.0),
            **given,
        }
    )


def with_compactions(*compactions: CompactionStatus) -> Callable[[str], lithify.api.client.Dataset]:
    class Given(lithify.api.client.Dataset):
        def status(self) -> Status:
            coordinator = CoordinatorStatus(Presence.ALIVE, 3, "lithify-x")
            return Status(self.url, 1_700_000_000_000, None, coordinator, compactions, Plan(), (), ())

    def open_given(url: str) -> lithify.api.client.Dataset:
        opened = lithify.open(url)
        opened.__class__ = Given
        return opened

    return open_given


def test_running_shows_a_bar_for_each_range_the_rate_and_the_worker(database: str) -> None:
    with shown([database], open_dataset=with_compactions(compaction())) as client:
        html = client.get(page_of(database, "running")).text
        overview = read(client.get("/").text).text
    text = read(html).text
    for said in ("1.5 MB of 4.0 MB (38%)", "250.0 kB/s", "10s", "1 of 4", "3s ago", "range 2: 50%"):
        assert said in text, said
    assert html.count('class="open"') == 4 + 1
    assert html.count('class="done"') == 2 + 1
    assert "compacting (1)" in overview
    assert "250.0 kB/s" in overview


def test_a_silent_worker_is_an_alarm(database: str) -> None:
    with shown([database], open_dataset=with_compactions(compaction(is_stale=True))) as client:
        assert '<td data-name="state" class="alarm">worker silent' in client.get("/").text


def test_bars_of_very_many_ranges_share() -> None:
    picture = draw_bars(compaction(ranges=10_000, range_shares=(1.0,) * 5000 + (0.0,) * 5000))
    assert len(picture.shapes) < 1500
    assert "each bar is 25 ranges" in picture.title


# Actions


@pytest.fixture
def acting(database: str) -> Any:
    with shown([database], token=TOKEN) as client:
        yield client


def form_of(client: TestClient, path: str) -> dict[str, str]:
    """The hidden fields of the form on a page."""
    tags = read(client.get(path, headers=BEARER).text).tags
    return {
        str(a["name"]): str(a["value"]) for name, a in tags if name == "input" and a.get("type") == "hidden"
    }


def test_submit_cancel_and_retry_by_their_pages(acting: TestClient, database: str) -> None:
    page = page_of(database)
    headers = {**BEARER, **ORIGIN}

    def do(action: str, compaction_id: str = "") -> None:
        fields = form_of(acting, f"{page}/confirm?do={action}&compaction={compaction_id}")
        answer = acting.post(f"{page}/{action}", data=fields, headers=headers)
        assert answer.status_code == 303, answer.text
        after = read(acting.get(answer.headers["location"], headers=BEARER).text).text
        assert {"submit": "Submitted.", "cancel": "Cancelled.", "retry": "Submitted again."}[action] in after

    do("submit")
    (first,) = invoke_json("status", database)["compactions"]
    assert f"do=cancel&amp;compaction={first['id']}" in acting.get(f"{page}/running", headers=BEARER).text
    do("cancel", first["id"])
    assert invoke_json("status", database)["compactions"] == []
    assert f"do=retry&amp;compaction={first['id']}" in acting.get(f"{page}/failures", headers=BEARER).text
    do("retry", first["id"])
    (second,) = invoke_json("status", database)["compactions"]
    assert second["id"] != first["id"]
    fields = form_of(acting, f"{page}/confirm?do=cancel&compaction=ZZZZZZ")
    answer = acting.post(f"{page}/cancel", data=fields, headers=headers)
    assert (answer.status_code, "whose id ends in ZZZZZZ" in answer.text) == (409, True)


def test_the_same_by_json(acting: TestClient, database: str) -> None:
    page = f"/api{page_of(database)}"
    submitted = acting.post(f"{page}/submit", json={}, headers=BEARER).json()["submitted"]
    cancelled = acting.post(f"{page}/cancel", json={"compactions": submitted}, headers=BEARER).json()
    assert cancelled == {"cancelled": submitted, "left_alone_ms": 60_000}
    assert (
        len(acting.post(f"{page}/retry", json={"compactions": submitted}, headers=BEARER).json()["submitted"])
        == 1
    )
    malformed = ('{"compactions": 1}', "[]", "x", '{"other": 1}', '{"compactions": [1]}')
    for wrong, status in (*((body, 400) for body in malformed), ("{}", 409)):
        headers = {**BEARER, "content-type": "application/json"}
        answer = acting.post(f"{page}/cancel", content=wrong, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (status, "Refused"), wrong


# A fleet


def test_a_fleet_its_queues_and_its_datasets(tmp_path: Path, database: str) -> None:
    fleet = lithify.Fleet(str(tmp_path / "fleet"))
    fleet.init()
    fleet.create_queue("small", largest_bytes=1000)
    fleet.add(database, tenant="red")
    with shown([], fleet=fleet) as client:
        overview = read(client.get("/").text).text
        assert f"{database} red" in overview
        assert "idle" in read(client.get(page_of(database)).text).text
        page = client.get("/fleet")
        assert "No process serves this fleet" in page.text
        assert re.search(r'href="/queues/small"', page.text)
        assert "small" in read(client.get("/queues/small").text).text
        assert client.get("/queues/none").status_code == 404
        status = client.get("/api/fleet").json()
        assert {**status, "at_ms": 0} == {**invoke_json("fleet", "status", fleet.url), "at_ms": 0}
        assert client.get("/api/queues/small").json()["name"] == "small"
        assert client.get("/api/fleet/datasets").json() == invoke_json("fleet", "list", fleet.url)
        assert client.get("/api/queues/none").status_code == 404


def test_what_of_a_fleet_cannot_be_looked_up_is_said(tmp_path: Path, database: str) -> None:
    fleet = lithify.Fleet(str(tmp_path / "fleet"))
    fleet.init()
    fleet.add(database, "iceberg://nowhere/ns.*")
    with shown([], fleet=fleet) as client:
        told = read(client.get("/").text).text
    assert database in told
    assert "Not all datasets can be shown: iceberg://nowhere/ns.*" in told
