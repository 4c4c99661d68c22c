"""`lithify group`, and logs whose settings name one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lithify
from lithify.base.errors import DatasetNotFound, Refused
from lithify.store.urls import open_store
from tests.cli.invoking import invoke, invoke_json
from tests.datasets.kafka import logs
from tests.datasets.kafka.folders import put_segments
from tests.fuzz.running import run


@pytest.fixture
def group(tmp_path: Path) -> str:
    url = str(tmp_path / "group")
    assert invoke_json("group", "init", "--members", "eu", url)["members"] == []
    return url


@pytest.fixture
def of_readers(group: str) -> str:
    """A group whose only copy has left."""
    assert invoke_json("group", "leave", group, "eu")["expected"] == []
    return group


def test_members_are_named_first_and_waited_for(group: str) -> None:
    assert invoke_json("group", "show", group)["expected"] == ["eu"]
    assert invoke_json("group", "join", "--at", "0=5", group, "reader")["thresholds"]["0"]["clean"] == 0
    found = invoke_json("group", "expect", group, "us", "ap")
    assert found["expected"] == ["ap", "eu", "us"]
    shown = invoke("group", "show", group).stdout
    assert "Nothing is removed before ap has joined." in shown
    for name in ("ap", "eu", "us"):
        found = invoke_json("group", "leave", group, name)
    assert (found["expected"], found["thresholds"]["0"]["clean"]) == ([], 5)


def test_a_reader_from_joining_to_leaving(of_readers: str) -> None:
    group = of_readers
    found = invoke_json("group", "join", "--at", "0=81240", "--at", "1=5", group, "warehouse")
    (member,) = found["members"]
    assert (member["name"], member["role"]) == ("warehouse", "reader")
    assert found["thresholds"]["0"] == {"clean": 81240, "resolved": 0}
    again = invoke_json("group", "join", "--at", "0=90000", "--at", "1=4", group, "warehouse")
    assert again["members"][0]["incarnation"] == member["incarnation"]
    assert again["thresholds"]["0"]["clean"] == 90000
    assert again["thresholds"]["1"]["clean"] == 5, "what goes back lowers nothing"
    shown = invoke("group", "show", group)
    assert "90,000" in shown.stdout
    assert invoke_json("group", "leave", group, "warehouse")["members"] == []
    assert "no members yet" in invoke("group", "show", group).stdout


def test_a_reader_that_starts_below_a_threshold_is_refused(of_readers: str) -> None:
    group = of_readers
    invoke_json("group", "join", "--at", "0=100", group, "first")
    refused = invoke("group", "join", "--at", "0=99", group, "second")
    assert refused.exit_code == 2
    assert "joins too late" in refused.stderr
    assert [m["name"] for m in invoke_json("group", "show", group)["members"]] == ["first"]


def test_refusals(group: str, tmp_path: Path) -> None:
    invoke_json("group", "join", "--at", "0=1", group, "reader")
    for arguments, reason in (
        (["init", "--members", "eu,us", group], "already has a group"),
        (["init", group], "name the copies of the group, all that exist"),
        (["init", "--members", "eu,,us", group], "is not a name"),
        (["expect", group, "a/b"], "is not a name"),
        (["show", str(tmp_path / "none")], "there is no group"),
        (["join", group, "x"], "the reader's offset in each partition"),
        (["join", "--at", "0", group, "x"], "PARTITION=OFFSET"),
        (["join", "--at", "0=-1", group, "x"], "PARTITION=OFFSET"),
        (["join", "--at", "0=1", "--at", "0=2", group, "x"], "given twice"),
        (["join", "--at", "0=1", group, "a/b"], "is not a name"),
        (["leave", group, "nobody"], "has no member"),
    ):
        result = invoke("group", *arguments)
        assert result.exit_code not in (0, 1)
        assert reason in result.stderr


def test_a_log_joins_with_its_first_round(group: str, tmp_path: Path) -> None:
    folder = tmp_path / "orders-0"
    segments = [[logs.data(n, ("a", str(n)), ("b", None))] for n in (0, 10, 20)]
    put_segments(*open_store(str(folder)), segments)
    url, at = f"kafka+file://{folder}", ["--set", f"kafka.group={group}"]
    assert "needs a name" in invoke("plan", *at, url).stderr
    at += ["--set", "kafka.member=eu"]
    assert "not a member of the group as eu" in invoke("doctor", "--read-only", *at, url).stdout
    assert run(["compact", *at, url]).exit_code == 0
    (member,) = invoke_json("group", "show", group)["members"]
    assert (member["name"], member["role"]) == ("eu", "copy")
    assert member["marks"] == {"0": {"clean": 0, "resolved": 22}}
    findings = json.loads(invoke("doctor", "--read-only", "--json", *at, url).stdout)
    assert "eu is one of 1 member" in [f["says"] for f in findings if f["check"] == "group"]
    assert "is a copy of the group" in invoke("group", "join", "--at", "0=1", group, "eu").stderr


def test_the_library(tmp_path: Path) -> None:
    group = lithify.Group(str(tmp_path / "group"))
    with pytest.raises(DatasetNotFound):
        group.show()
    with pytest.raises(Refused, match="name the copies"):
        group.init([])
    assert group.init(["eu"]).document["expected"] == ["eu"]
    assert group.expect("us").document["expected"] == ["eu", "us"]
    for name in ("eu", "us"):
        group.leave(name)
    assert group.join("warehouse", {0: 5}).document["thresholds"] == {"0": {"clean": 5, "resolved": 0}}
    with pytest.raises(Refused, match="negative"):
        group.join("warehouse", {0: -1})
    assert group.leave("warehouse").document["members"] == []


TOO_FAR = 1 << 62


@pytest.mark.parametrize("is_member", [False, True])
@pytest.mark.parametrize(
    "offsets",
    [{0: 5.0}, {0: True}, {0.0: 5}, {True: 5}, {0: float("nan")}, {0: TOO_FAR}, {TOO_FAR: 0}, {"0": 5}],
)
def test_offsets_that_nobody_could_read_are_refused(group: str, offsets: Any, is_member: bool) -> None:
    """They would be the end of the group: every change begins with reading the latest version."""
    if is_member:
        lithify.Group(group).join("reader", {0: 1})
    before = lithify.Group(group).show()
    with pytest.raises(Refused, match="is not a whole number from 0 to"):
        lithify.Group(group).join("reader", offsets)
    assert lithify.Group(group).show() == before
    lithify.Group(group).join("reader", {0: TOO_FAR - 1})


def test_the_command_line_takes_no_offset_that_nobody_could_read(group: str) -> None:
    for at in (f"0={TOO_FAR}", "0=9223372036854775807", f"{TOO_FAR}=0"):
        refused = invoke("group", "join", "--at", at, group, "reader")
        assert refused.exit_code == 2
        assert "is not a whole number from 0 to" in " ".join(refused.stderr.split())
    assert invoke_json("group", "show", group)["members"] == []
