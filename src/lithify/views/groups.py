"""The report about a group of copies: a JSON value for scripts, tables for people."""

from __future__ import annotations

from typing import Any

from lithify.views import text
from lithify.views.blocks import Block, Line, Lines, Shown, Table, columns
from lithify.watermarks.groups import NO_MARKS, GroupState, Joined, Marks, Track, waiting

WORDS = {Track.CLEAN: "tombstones", Track.RESOLVED: "transaction markers"}


def show_group(url: str, group: GroupState) -> Shown:
    """Report members, thresholds by partition, and which positions wait for which member."""
    waits = waiting(group)
    partitions = sorted({*group.thresholds, *(p for one in group.members.values() for p in one.marks)})
    document = {
        "url": url,
        "epoch": group.epoch,
        "leader": group.leader,
        "expected": sorted(group.expected),
        "differing": {str(p): list(both) for p, both in sorted(group.differing.items())},
        "members": [_member(name, one) for name, one in sorted(group.members.items())],
        "thresholds": {str(p): _marks(group.thresholds_of(p)) for p in partitions},
        "waiting": [
            {
                "partition": found.partition,
                "track": str(found.track),
                "position": found.position,
                "by": found.by,
                "since_ms": found.since_ms,
                "until": found.until,
            }
            for found in waits
        ],
    }
    awaited = Lines(
        [Line(f"Nothing is removed before {name} has joined.") for name in sorted(group.expected)],
        "that have not joined",
    )
    if not group.members:
        return Shown(document, (Line("The group has no members yet."), awaited))
    members = [
        (name, str(one.role), text.moment(one.since_ms), str(p), f"{marks.clean:,}", f"{marks.resolved:,}")
        for name, one in sorted(group.members.items())
        for p, marks in _known(one, partitions)
    ]
    thresholds = [
        (str(p), f"{at.clean:,}", f"{at.resolved:,}") for p in partitions for at in [group.thresholds_of(p)]
    ]
    blocks: tuple[Block, ...] = (
        Table(
            "Members",
            columns("=name", "role", "=since", ">partition", ">clean below", ">resolved below"),
            members,
            of="members",
        ),
        awaited,
        Lines(
            [
                Line(f"partition {p}: nothing is removed, since {one} and {other} have different offsets")
                for p, (one, other) in sorted(group.differing.items())
            ],
            "that differ",
        ),
        Table("May be removed", columns(">partition", ">tombstones below", ">markers below"), thresholds),
        Lines(
            [
                Line(
                    f"partition {found.partition}: {WORDS[found.track]} from {found.position:,} to "
                    f"{found.until:,} wait for {found.by}"
                    + ("" if found.since_ms is None else f", since {text.moment(found.since_ms)}")
                )
                for found in waits
            ],
            "that wait",
        ),
    )
    return Shown(document, blocks)


def _known(one: Joined, partitions: list[int]) -> list[tuple[int | str, Marks]]:
    return [(p, one.marks.get(p, NO_MARKS)) for p in partitions] or [("–", NO_MARKS)]


def _member(name: str, one: Joined) -> dict[str, Any]:
    return {
        "name": name,
        "role": str(one.role),
        "incarnation": one.member.incarnation,
        "since_ms": one.since_ms,
        "owner": one.owner,
        "marks": {str(p): _marks(marks) for p, marks in sorted(one.marks.items())},
    }


def _marks(marks: Marks) -> dict[str, int]:
    return {"clean": marks.clean, "resolved": marks.resolved}
