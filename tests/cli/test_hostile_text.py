"""Text that somebody else wrote, where people see it: on terminals, in logs, in a browser, for Prometheus.

A lease's holder, the reason of a failure, a worker's name, a tenant and a member of a fleet carry everything
that a terminal would obey. The judge is what a terminal would do: nothing but text and colours arrives.
"""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import unicodedata
from collections.abc import Callable
from functools import partial
from types import MappingProxyType

import pytest

import lithify
from lithify.api.wiring import commit_records
from lithify.base import events
from lithify.base.clock import SystemClock
from lithify.base.errors import EngineError
from lithify.base.ids import RandomIds
from lithify.base.printable import MAX_CHARS
from lithify.coordination.commit_records import CommitRecord
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.model import DatasetRule
from lithify.observe.endpoint import with_health
from lithify.observe.logs import EventLog, set_up_logs
from lithify.observe.metrics import Metrics
from lithify.observe.progress import ProgressBars
from lithify.protocol import transitions
from lithify.protocol.attempts import Attempt, FailedAttempt
from lithify.protocol.lease import Lease
from lithify.protocol.model import Compaction, Ledger
from lithify.protocol.transitions import AnyCompaction
from lithify.views.consoles import print_text, standard_error, standard_output
from tests.cli.invoking import invoke, logging_as_before
from tests.cli.test_status import database
from tests.compacting import dataset_at
from tests.ledgers import take_epoch
from tests.web.dashboards import BEARER, TOKEN, page_of, shown

FORGED = "2026-11-21T07:35:36.102+00:00 ERROR forged"
EVIL = (
    "\x1b[2J\x1b[31mred\x1b]0;title\x07\x9b31m\x08\x08\x7f\rover\n"
    + FORGED
    + "\u202etxt.exe\u2066\u2028next\x85nel\x0bvt\x0cff\t[red]x[/red][/] [link=http://e]y[/link] :100: "
    "%s %(x)s {0} {x!r} $(id) `id` \\[bold] \\"
)
LONG = EVIL + "A" * 100_000
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LINKS = re.compile(r"\x1b\]8;")


def judge(text: str, *, most_chars: int = 400_000) -> str:
    """What is left of the text without colours, which is all that may be in it besides text."""
    plain = _COLOURS.sub("", text)
    odd = {c for c in plain if c != "\n" and (unicodedata.category(c)[0] == "C" or c in "\u2028\u2029")}
    assert not odd, {hex(ord(c)) for c in odd}
    assert not _LINKS.search(text)
    lines = plain.split("\n")
    assert not [line for line in lines if line.startswith((FORGED[:30], "over"))]
    assert len(plain) < most_chars
    return plain


@pytest.fixture(params=["terminal", "narrow", "file"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "file":
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "200" if request.param == "terminal" else "60")
    return str(request.param)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database whose lease, ledger, attempts, failures and records were written by somebody else."""
    path = tmp_path_factory.mktemp("hostile") / "db"
    database(path, 5)
    dataset = dataset_at(path)
    take_epoch(dataset)
    (proposal,) = dataset.propose(dataset.snapshot(), dataset.ledger() or Ledger()).proposals
    ids = RandomIds()
    compaction_id = ids.ulid(1_700_000_000_000)
    new: AnyCompaction = Compaction(compaction_id, proposal.spec)

    def claim(ledger: Ledger) -> Ledger:
        scheduled = transitions.schedule(transitions.submit(ledger, new), compaction_id)
        return transitions.claim(scheduled, compaction_id, EVIL, 1)

    dataset.update_ledger(claim)
    dataset.journal.add_attempt(compaction_id, Attempt(EVIL, LONG, 5))
    spec = dataset.encode_spec(proposal.spec)
    for n in range(3):
        dataset.journal.add_failure(FailedAttempt(ids.ulid(n), LONG, 3, 10 + n, spec, unit=EVIL))
    commit_records(dataset).add(
        CommitRecord(compaction_id, 1_700_000_000_000, True, EVIL, LONG, (EVIL,), 1, 1, {EVIL: 1}, 1, 1.0)
    )
    dataset.lease.write(Lease(EVIL, taken=dataset.snapshot().compactor_epoch), None)
    return str(path)


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("doctor", "--read-only"),
        ("history",),
        ("plan",),
        ("inspect", "compactions"),
        ("cancel", "01M7Y73N1RT45V6YVXGPSA14X\x1b"),
    ],
    ids=" ".join,
)
def test_a_database_of_somebody_elses(hostile: str, place: str, command: tuple[str, ...]) -> None:
    arguments = [command[0], *command[1:2], hostile] if command[0] == "inspect" else [
        command[0], hostile, *command[1:]
    ]  # fmt: skip
    result = invoke(*arguments)
    assert "Traceback" not in result.output
    judge(result.stdout)
    judge(result.stderr)
    told = result.stdout + result.stderr
    if command[0] in ("status", "doctor"):
        assert r"\x1b[2J\x1b[31mred" in "".join(_COLOURS.sub("", told).split()), "it is shown, as text"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A fleet whose catalog and members were written by somebody else."""
    folder = tmp_path_factory.mktemp("fleet")
    made = lithify.Fleet(str(folder / "fleet"))
    made.init()
    settings = MappingProxyType({"iceberg.properties.branch": EVIL, EVIL: EVIL})
    rules = [
        DatasetRule(str(folder / "db"), tenant=EVIL),
        DatasetRule("iceberg://l/n.t", tenant=EVIL, settings=settings),
        DatasetRule("s3://bucket/\x85\u202e[red]*"),
    ]
    made._files.catalog.update(partial(changes.add_rules, rules=rules))
    made._files.catalog.update(partial(changes.set_tenant, name=EVIL.replace("*", ""), weight=2))
    (queue,) = made.catalog().catalog.queues
    name = "worker-01JFXAAAAAAAAAAAAAAAAAAAAA"
    member = {
        "name": name,
        "role": "worker",
        "host": EVIL,
        "version": EVIL,
        "catalog": 1,
        "datasets": 1,
        "quarantined": 1,
        "troubled": {EVIL: LONG},
        "running": [
            {
                "url": EVIL,
                "compaction": EVIL,
                "queue_id": queue.id,
                "since_ms": 0,
                "bytes": 1,
                "tenant": EVIL,
                "catalog": 1,
            }
        ],
        "at_ms": 1,
        "needs": 1,
        "beats_ms": 10_000,
        "load": {},
    }
    (folder / "fleet" / "members").mkdir(parents=True, exist_ok=True)
    (folder / "fleet" / "members" / f"{name}.json").write_text(json.dumps(member))
    board = folder / "fleet" / "boards" / queue.id
    board.mkdir(parents=True)
    hint = {
        "url": EVIL,
        "compaction": EVIL,
        "band": 1,
        "priority": 1,
        "bytes": 1,
        "since_ms": 1,
        "attempts": 0,
        "tenant": EVIL,
        "worker": EVIL,
        "idle_workers": 0,
        "catalog": 1,
    }
    (board / f"{name}.json").write_text(json.dumps({"hints": [hint]}))
    return made.url


@pytest.mark.parametrize(
    "command",
    [
        ("fleet", "status"),
        ("fleet", "list"),
        ("fleet", "workers"),
        ("fleet", "running"),
        ("fleet", "doctor"),
        ("fleet", "tenant", "list"),
        ("queue", "list"),
        ("queue", "info"),
    ],
    ids=" ".join,
)
def test_a_fleet_of_somebody_elses(fleet: str, place: str, command: tuple[str, ...]) -> None:
    more = ("default",) if command == ("queue", "info") else ()
    result = invoke(*command, fleet, *more)
    assert "Traceback" not in result.output
    assert result.stdout or result.stderr
    judge(result.stdout)
    judge(result.stderr)
    document = invoke(*command, fleet, *more, "--json").stdout
    json.loads(document)
    assert document.isascii(), "for scripts it is data, which JSON escapes by itself"


# Logs, progress, errors


def test_a_log_for_people_has_one_line_for_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    with logging_as_before():
        set_up_logs("text", "debug")
        log = EventLog(SystemClock())
        log(events.AttemptFailed(EVIL, "01JFXAAAAAAAAAAAAAAAAAAAAA", EVIL))
        log(events.Reclaimed("url", "01JFXAAAAAAAAAAAAAAAAAAAAA", EVIL))
        logging.getLogger("lithify").error("it failed: %s", EVIL)
        logging.getLogger("some.library").warning(EVIL.replace("%", ""))
    text = judge(written.getvalue())
    assert text.count("\n") == 4


def test_the_lines_of_a_traceback_are_set_in(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    with logging_as_before():
        set_up_logs("text", "debug")
        try:
            raise ValueError(EVIL)
        except ValueError:
            logging.getLogger("lithify").exception("a defect")
    first, *others = judge(written.getvalue()).rstrip("\n").split("\n")
    assert first.endswith("ERROR a defect")
    assert others
    assert all(line.startswith("  ") for line in others)


def test_a_log_for_machines_has_one_line_for_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    with logging_as_before():
        set_up_logs("json", "debug")
        EventLog(SystemClock())(events.AttemptFailed(EVIL, "01JFXAAAAAAAAAAAAAAAAAAAAA", EVIL))
    (line,) = judge(written.getvalue()).splitlines()
    assert json.loads(line)["reason"] == EVIL


def test_progress_is_text(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    console = standard_error()
    compaction = "01JFXAAAAAAAAAAAAAAAAAAAAA"
    bars = ProgressBars(console)
    for event in (
        events.Submitted("url", compaction, LONG, 1),
        events.CompactionRefused("url", compaction, LONG),
        events.Reclaimed("url", compaction, EVIL),
        events.AttemptFailed("url", compaction, LONG),
        events.Claimed("url", compaction, EVIL),
        events.EngineLost("url", compaction, LONG),
        events.StoreLost("url", compaction, LONG),
        events.Dropped("url", compaction, LONG),
        events.WaitingForStore("url", EVIL, 1.0, EVIL),
    ):
        bars(event)
    console.print(bars._progress.get_renderable())
    bars(events.StoreBack("url", EVIL, 1.0))
    bars.say(LONG)
    judge(written.getvalue())


def test_an_error_is_one_sentence(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_text(standard_error(), str(EngineError(LONG)), lead="EngineError: ", style="red")
    text = judge(capsys.readouterr().err)
    assert len(text) < 2 * MAX_CHARS
    first, *others = text.rstrip("\n").split("\n")
    assert first.startswith("EngineError: ")
    assert all(line.startswith("  ") for line in others)


@pytest.mark.parametrize(
    "printed",
    [
        lambda console: console.print(EVIL, markup=False),
        lambda console: console.print(EVIL.replace("[", "(")),
        lambda console: console.out(EVIL),
        lambda console: console.log(EVIL, markup=False),
        lambda console: console.rule(EVIL.replace("[", "(")),
        lambda console: console.print({"key": EVIL}),
    ],
)
def test_whatever_prints_on_a_console_prints_text(
    printed: Callable[[object], None], place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A caller that never heard of it."""
    printed(standard_output())
    assert "\x1b[2J" not in capsys.readouterr().out


# Elsewhere


def test_pages_show_text(hostile: str, fleet: str) -> None:
    with shown([hostile], fleet=lithify.Fleet(fleet), token=TOKEN) as client:
        paths = ["/", "/fleet", "/queues/default", "/datasets?q=%1b%5b2J"]
        paths += [page_of(hostile, tab) for tab in ("", "running", "plan", "history", "failures")]
        for path in paths:
            answer = client.get(path, headers=BEARER)
            assert answer.status_code == 200, path
            odd = {c for c in answer.text if c != "\n" and unicodedata.category(c)[0] == "C"}
            assert not odd, (path, odd)
        assert r"\x1b[2J" in client.get(page_of(hostile, "failures"), headers=BEARER).text


def test_prometheus_reads_what_it_is_told() -> None:
    metrics = Metrics(SystemClock(), coordinates=True)
    url = EVIL + "\udcff"
    metrics(events.Committed(url, "01JFXAAAAAAAAAAAAAAAAAAAAA", "unit"))
    from prometheus_client import make_wsgi_app
    from prometheus_client.parser import text_string_to_metric_families

    answers: list[str] = []
    environ: dict[str, object] = {"PATH_INFO": "/metrics", "REQUEST_METHOD": "GET", "QUERY_STRING": ""}
    app = with_health(make_wsgi_app(metrics.registry), metrics)
    body = b"".join(app(environ, lambda status, _headers: answers.append(status))).decode()
    assert answers == ["200 OK"]
    families = {family.name: family for family in text_string_to_metric_families(body)}
    (sample,) = [s for f in families.values() for s in f.samples if s.name == "lithify_committed_total"]
    assert sample.labels["dataset"] == EVIL + "\\udcff"
