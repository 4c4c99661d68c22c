"""`lithify mirror`, `lithify restore` and what `doctor`, `status` and `inspect` say of a mirror."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lithify
from lithify.base.errors import Refused
from tests.cli.invoking import invoke
from tests.datasets.slatedb.mirroring.drill import rows_of
from tests.judge.official import open_db, open_reader
from tests.s3 import S3


def options(s3: S3) -> list[str]:
    return [word for name, value in s3.options.items() for word in ("--store-option", f"{name}={value}")]


def write(url: Path | str, s3: S3 | None = None, **rows: str) -> None:
    with open_db(url, store_options=s3.options if s3 is not None else {}) as database:
        for key, value in rows.items():
            database.put(key.encode(), value.encode())
            database.flush()


def unwrapped(shown: str) -> str:
    """A text whose lines are broken where the length of a path has them broken, as one line."""
    return " ".join(shown.split())


def test_a_mirror_from_its_first_point_to_a_restore(tmp_path: Path) -> None:
    source, target, restored = (str(tmp_path / name) for name in ("db", "mirror", "restored"))
    write(source, a="1")
    first = invoke("mirror", source, target, "--json")
    assert first.exit_code == 0, first.output
    at = json.loads(first.stdout)["point"]["at"]
    write(source, b="2")
    second = invoke("mirror", source, target)
    assert second.exit_code == 0, second.output
    assert "mirrored up to" in unwrapped(second.stdout)
    assert "2 points" in unwrapped(second.stdout)
    assert "nothing has changed since" in unwrapped(invoke("mirror", source, target).stdout)

    listed = json.loads(invoke("inspect", "points", target, "--json").stdout)
    assert [point["at"] for point in listed["points"]][-1] == at
    for command in ("status", "plan", "compact"):
        refused = invoke(command, target)
        assert refused.exit_code == 2
        assert "is a mirror of a database" in unwrapped(refused.output)
    healthy = json.loads(invoke("doctor", target, "--json").stdout)
    assert {f["severity"] for f in healthy if f["check"] in ("mirror", "points")} == {"ok"}

    assert invoke("restore", target, restored, "--at", at).exit_code == 0
    assert rows_of(Path(restored)) == {b"a": b"1"}
    again = invoke("restore", target, restored)
    assert again.exit_code == 2
    assert "already has a database" in unwrapped(again.output)
    too_early = invoke("restore", target, str(tmp_path / "early"), "--at", "2001-01-01")
    assert too_early.exit_code == 2
    assert at in too_early.output
    assert not (tmp_path / "early").exists()

    copies = sorted((tmp_path / "mirror" / "compacted").iterdir())
    copies[-1].write_bytes(b"short")
    ill = json.loads(invoke("doctor", target, "--json").stdout)
    (finding,) = [f for f in ill if f["severity"] == "problem"]
    assert "1 point cannot be restored" in finding["says"]
    damaged = invoke("restore", target, str(tmp_path / "other"))
    assert damaged.exit_code == 2
    assert "5 bytes instead of" in unwrapped(damaged.output)
    assert not (tmp_path / "other").exists()


def test_what_is_no_mirror(tmp_path: Path) -> None:
    source = str(tmp_path / "db")
    write(source, a="1")
    for words in (("restore", source, str(tmp_path / "x")), ("inspect", "points", source)):
        result = invoke(*words)
        assert result.exit_code == 2
        assert "there is no mirror at" in unwrapped(result.output)
    nowhere = invoke("restore", f"{tmp_path}/*", str(tmp_path / "x"))
    assert nowhere.exit_code == 2
    assert "there is no mirror at any place that matches" in unwrapped(nowhere.output)
    inside = invoke("mirror", source, f"{source}/mirror")
    assert inside.exit_code == 2
    assert "overlap" in inside.output
    table = invoke("mirror", "iceberg://lake/ns.t", str(tmp_path / "y"))
    assert table.exit_code == 2
    assert "Lithify mirrors databases" in unwrapped(table.output)
    assert invoke("mirror", source, str(tmp_path / "y"), "--every", "1ms").exit_code == 2


def test_a_pattern_and_a_database_that_cannot_be_read(tmp_path: Path) -> None:
    for name in ("a b", "c"):
        write(tmp_path / "tenants" / name / "db", tenant=name)
    broken = tmp_path / "tenants" / "bad" / "db" / "manifest"
    broken.mkdir(parents=True)
    (broken / f"{1:020d}.manifest").write_bytes(b"?")
    (tmp_path / "tenants" / "none" / "db").mkdir(parents=True)
    done = invoke("mirror", str(tmp_path / "tenants" / "*" / "db"), str(tmp_path / "copies"), "--json")
    assert done.exit_code == 4, "the error of the one that is damaged"
    assert len([line for line in done.stdout.splitlines() if '"point"' in line]) == 2
    restored = invoke("restore", str(tmp_path / "copies" / "*" / "db"), str(tmp_path / "again"))
    assert restored.exit_code == 0, restored.output
    for name in ("a b", "c"):
        assert rows_of(tmp_path / "again" / name / "db") == {b"tenant": name.encode()}


def test_one_bucket_and_another_store(s3: S3, tmp_path: Path) -> None:
    """Within a bucket the store copies; between stores the bytes are streamed."""
    bucket = f"s3://{s3.bucket()}"
    rows = {f"k{n}": "v" * 5_000_000 for n in range(2)}  # more than one piece
    write(f"{bucket}/db", s3, **rows)
    settings = {"store_options": {f"{bucket}#{name}": value for name, value in s3.options.items()}}
    within = lithify.Mirror(f"{bucket}/db", f"{bucket}/copies/db", settings=settings).take_point().document
    assert within["ssts"] == 2
    lithify.restore(f"{bucket}/copies/db", f"{bucket}/again", settings=settings)
    away = lithify.Mirror(f"{bucket}/again", tmp_path / "mirror", settings=settings).take_point().document
    assert away["bytes"] > 10_000_000
    with open_reader(f"{bucket}/again", store_options=s3.options) as reader:
        assert dict(reader.scan()) == {k.encode(): v.encode() for k, v in rows.items()}
    lithify.restore(tmp_path / "mirror", tmp_path / "here")
    assert rows_of(tmp_path / "here") == {k.encode(): v.encode() for k, v in rows.items()}
    with pytest.raises(Refused, match="already has a database"):
        lithify.restore(tmp_path / "mirror", f"{bucket}/db", settings=settings)


def test_a_mirror_that_anybody_has_written_to(tmp_path: Path) -> None:
    """Its texts are shown as text; a path in it leads nowhere; a newer version's is not called damaged."""
    write(tmp_path / "db", a="1")
    target = tmp_path / "mirror"
    assert invoke("mirror", str(tmp_path / "db"), str(target)).exit_code == 0
    newest = max((target / "mirror").iterdir())
    written = json.loads(newest.read_bytes())

    def say(**changes: object) -> None:
        newest.write_text(json.dumps({**written, **changes}))

    say(source="\x1b[31mred\x07")
    for words in (("inspect", "points"), ("doctor", "--read-only"), ("status",)):
        result = invoke(*words, str(target))
        assert "\x1b[31m" not in result.output
        assert "\x07" not in result.output
    say(format=2, points="of another form")
    newer = invoke("restore", str(target), str(tmp_path / "x"))
    assert newer.exit_code == 2
    assert "a newer version of Lithify" in unwrapped(newer.output)
    for wrong in (
        {"points": [written["points"][0] | {"wal_to": -1}]},
        {"copying": ["../../db"]},
        {"doomed": 5},
    ):
        say(**wrong)
        assert invoke("mirror", str(tmp_path / "db"), str(target)).exit_code == 4
        assert invoke("restore", str(target), str(tmp_path / "x")).exit_code == 4
        assert "problem" in invoke("doctor", "--read-only", str(target)).output
    newest.write_text(json.dumps(written))
    (listed,) = (target / "manifests").glob("*.json")
    listed.write_text(json.dumps({"ssts": {"../../db/manifest/x": 1}}))
    assert invoke("restore", str(target), str(tmp_path / "x")).exit_code == 4
    assert not (tmp_path / "x").exists()
