"""What there is to show of a rewrite of a table's manifests."""

from __future__ import annotations

from lithify.datasets.iceberg.rewrite_manifests import DONE, Outcome, Rewriting
from lithify.views.blocks import Line, Shown, notes


def show_manifests(url: str, found: Rewriting) -> Shown:
    """What a run rewrote and why, or would; what it left alone."""
    reasons = {reason.name.lower(): count for reason, count in found.plan.reasons.items()}
    document = {
        "url": url,
        "dry_run": found.dry_run,
        "outcome": found.outcome.value,
        "why": found.why,
        "rewritten_manifests_count": found.rewritten,
        "added_manifests_count": found.added,
        "processed_entries_count": found.entries,
        "manifests": found.manifests,
        "reasons": reasons if found.rewritten else {},
        "notes": list(found.notes),
    }
    return Shown(document, (*_lines(found), notes(found.notes)))


def _lines(found: Rewriting) -> tuple[Line, ...]:
    if found.outcome not in DONE:
        lead = found.outcome.value.replace("_", " ").capitalize()
        return (Line(f": {found.why}. Nothing was rewritten.", lead, is_bad=True),)
    if found.outcome is Outcome.NOTHING_TO_DO:
        return (Line(f"Nothing to rewrite; the table has {found.manifests:,} manifests."),)
    does = "would be rewritten as about" if found.dry_run else "rewritten as"
    done = Line(f"{found.rewritten:,} manifests {does} {found.added:,}; {found.manifests:,} are left.")
    why = ", ".join(f"{count:,} {reason.value}" for reason, count in found.plan.reasons.items())
    return done, Line(f"Why: {why}.")
