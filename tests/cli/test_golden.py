"""What commands print, whole, beside files that say what it was when somebody last read it.

`pytest tests/cli/test_golden.py --rewrite-golden` writes the files anew: read what `git diff` says of them.
Ids, paths, times and what else is another in each run is replaced by its kind and a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from pyiceberg.table import Table

from tests.cli.invoking import COMMAND, invoke
from tests.datasets.iceberg.tables import ARROW, DAY, START, new_catalog, new_table
from tests.datasets.kafka.test_commands import put_log
from tests.fuzz.running import run
from tests.judge.official import Put, open_db

GOLDEN = Path(__file__).parent / "golden"
WIDTH = "200"
CHANGING = (
    ("id", r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b"),
    ("uuid", r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
    ("hash", r"\b(?=[0-9]*[a-f])[0-9a-f]{16,64}\b"),
    (
        "end of an id",
        r"(?m)(?<=lithify-)[0-9A-HJKMNP-TV-Z]{6}\b|(?<![-./\w])(?!MASTER)[0-9A-HJKMNP-TV-Z]{6}\b",
    ),
    ("time", r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(\+00:00|Z)?"),
    ("snapshot", r"\b\d{17,19}\b"),
    ("ms", r"\b1[78]\d{11}\b"),
    ("rate", r"\b\d+/min|\b\d+(\.\d+)? [kM]?B/s"),
    ("duration", r"\b\d+(\.\d+)?(e-\d+)? ?(ms|s|min)\b"),
)
"""What changes from run to run, and what it looks like."""
MEASURED = re.compile(
    r'("(?:seconds|task_cpu_seconds|peak_task_memory_bytes|age_ms|\w*remaining_ms|\w*per_s|\w*stall_ms)": )'
    r"[\d.e-]+"
)


def steady(text: str, folder: Path) -> str:
    """The text without what changes."""
    text = MEASURED.sub(r"\1<measured>", text.replace(str(folder), "<folder>"))
    for kind, pattern in CHANGING:
        seen: dict[str, int] = {}

        def numbered(match: re.Match[str], kind: str = kind, seen: dict[str, int] = seen) -> str:
            if kind in ("duration", "rate", "time"):
                return f"<{kind}>"
            return f"<{kind} {seen.setdefault(match.group(), len(seen) + 1)}>"

        text = re.sub(pattern, numbered, text)
    # Columns are as wide as what changes.
    text = re.sub(r"([ ━─])\1+", r"\1", text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@pytest.fixture
def check(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, str], None]:
    """Compare a text with the file of that name."""

    return lambda name, text: compare(request, name, steady(text, tmp_path))


def compare(request: pytest.FixtureRequest, name: str, found: str) -> None:
    """Compare a steady text with the file of that name."""
    file = GOLDEN / f"{name}.txt"
    if request.config.getoption("--rewrite-golden"):
        file.write_text(found)
    assert found == file.read_text(), f"see --rewrite-golden in {__file__}"


@pytest.fixture(autouse=True)
def as_wide_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", WIDTH)
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", int(WIDTH))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Five flushes. How many versions of its manifest and files of its log that makes, chance decides."""
    return make_database(tmp_path / "db")


def make_database(path: Path) -> Path:
    with open_db(path) as opened:
        for n in range(5):
            opened.write_batch([Put(b"key %03d" % k, b"value %d" % n) for k in range(100)])
            opened.flush()
    return path


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two days of small files."""
    return make_table(tmp_path)


def make_table(folder: Path) -> Table:
    import pyarrow as pa

    table = new_table(new_catalog(folder, name="lake"))
    for n in range(4):
        times = [START + n * DAY / 2 + k * DAY / 40 for k in range(10)]
        table.append(pa.table([times, list(range(10)), ["a"] * 10], schema=ARROW))
    return table


def test_of_a_database(database: Path, check: Callable[[str, str], None]) -> None:
    url = str(database)
    for as_json in ([], ["--json"]):
        ending = "-json" if as_json else ""
        check(f"database-plan{ending}", invoke("plan", *as_json, url).output)
        check(f"database-plan-full{ending}", invoke("plan", "--full", *as_json, url).output)
        check(f"database-status{ending}", invoke("status", *as_json, url).output)
    said = invoke("doctor", "--read-only", url).output.splitlines()
    check("database-doctor", "\n".join(line for line in said if not re.search("java|cache|versions", line)))
    check("database-compact", run(["compact", url]).output)
    check("database-compact-nothing", run(["compact", url]).output)
    check("database-compactions", invoke("inspect", "compactions", url).output)
    check("database-status-after", invoke("status", url).output)


def test_of_a_table(table: Table, tmp_path: Path, check: Callable[[str, str], None]) -> None:
    lake = ["iceberg://lake/db.events", "--store-option", f"uri=sqlite:///{tmp_path}/catalog.db"]
    for as_json in ([], ["--json"]):
        ending = "-json" if as_json else ""
        check(f"table-plan{ending}", invoke("plan", *as_json, *lake).output)
        check(f"table-status{ending}", invoke("status", *as_json, *lake).output)
    check("table-compact", run(["compact", *lake]).output)
    check("table-compact-nothing", run(["compact", *lake]).output)
    check("table-status-after", invoke("status", *lake).output)
    check("table-gc", run(["gc", "--min-age", "0", *lake]).output)


def test_of_a_log(check: Callable[[str, str], None]) -> None:
    place = f"memory://{uuid4()}/orders-0"  # how long its path is, is in what is written
    put_log(place)
    url = f"kafka+{place}"
    for as_json in ([], ["--json"]):
        ending = "-json" if as_json else ""
        check(f"log-plan{ending}", invoke("plan", *as_json, url).output)
        check(f"log-status{ending}", invoke("status", *as_json, url).output)
    check("log-segments", invoke("inspect", "segments", url).output)
    check("log-compact", run(["compact", url]).output)
    check("log-compact-nothing", run(["compact", url]).output)
    check("log-status-after", invoke("status", url).output)
    check("log-gc", run(["gc", "--min-age", "0", url]).output)


def test_help(check: Callable[[str, str], None]) -> None:
    names = [[], *([name] for name in COMMAND.commands)]
    check("help", "\n".join(invoke(*name, "--help").output for name in names))


def test_refusals(database: Path, tmp_path: Path, check: Callable[[str, str], None]) -> None:
    wrong = (
        ["plan", str(tmp_path / "nothing")],
        ["plan", "s4://bucket/db"],
        ["compact", "--segment", "6", str(database)],
        ["compact", "--chunk", "2025-01-01", str(database)],
        ["plan", "--set", "service.pol_interval=1s", str(database)],
        ["compact", "--compression", "brotli", str(database)],
        ["wait", "--timeout", "soon", str(database)],
        ["cancel", str(database), "nonsense"],
        ["gc", "--min-age", "-1", str(database)],
        ["submit", str(database)],
    )
    lines = []
    for arguments in wrong:
        result = invoke(*arguments)
        lines.append(f"$ lithify {' '.join(arguments)}\n{result.output}exit code {result.exit_code}\n")
    check("refusals", "\n".join(lines))
