"""The display of a dataset's commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lithify.coordination.commit_records import CommitRecord
from lithify.views import text
from lithify.views.blocks import Block, Line, Shown, Table, columns


def show_commits(url: str, commits: Sequence[CommitRecord]) -> Shown:
    """Return each commit, and the totals."""
    document = {"url": url, "commits": [_json(c) for c in commits], "totals": _totals(commits)}
    if not commits:
        return Shown(document, (Line("No commit is recorded."),))
    headings = columns(
        "=committed", "=id", "unit", ">read", ">written", ">rows in", ">rows out", "dropped", "took", "why"
    )
    rows = [
        (
            text.moment(c.at_ms),
            text.short_id(c.compaction),
            c.unit,
            text.size(c.bytes_read),
            text.size(c.bytes_written),
            *(f"{c.rows[name]:,}" if name in c.rows else "–" for name in ("rows_in", "rows_out")),
            _dropped(c) or "–",
            text.duration(c.seconds * 1000),
            c.reason or "–",
        )
        for c in reversed(commits)
    ]
    read, written = (sum(getattr(c, name) for c in commits) for name in ("bytes_read", "bytes_written"))
    seconds = sum(c.seconds for c in commits)
    rate = f" ({text.rate(read / seconds)})" if seconds else ""
    blocks: tuple[Block, ...] = (
        Table("Commits, newest first", headings, rows, of="commits"),
        Line(
            f"{text.count(len(commits), 'commit')}: read {text.size(read)}, wrote {text.size(written)} in "
            f"{text.duration(seconds * 1000)} of work{rate}."
        ),
    )
    return Shown(document, blocks)


def _json(commit: CommitRecord) -> dict[str, Any]:
    fields = asdict(commit) | {"workers": list(commit.workers)}
    del fields["is_commit"]
    return fields


def _totals(commits: Sequence[CommitRecord]) -> dict[str, Any]:
    rows: Counter[str] = Counter()
    requests: Counter[str] = Counter()
    for commit in commits:
        rows.update(commit.rows)
        requests.update(commit.requests)
    return {
        "commits": len(commits),
        "bytes_read": sum(c.bytes_read for c in commits),
        "bytes_written": sum(c.bytes_written for c in commits),
        "rows": dict(rows),
        "seconds": round(sum(c.seconds for c in commits), 3),
        "cpu_seconds": round(sum(c.cpu_seconds for c in commits), 3),
        "requests": dict(requests),
    }


def _dropped(commit: CommitRecord) -> str:
    reasons = sorted(name for name in commit.rows if name not in ("rows_in", "rows_out"))
    return ", ".join(
        f"{commit.rows[name]:,} {name.replace('_', ' ')}" for name in reasons if commit.rows[name]
    )
