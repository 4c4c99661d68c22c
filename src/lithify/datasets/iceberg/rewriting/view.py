"""Views of a rewrite of a table's delete files or manifests."""

from __future__ import annotations

from typing import Any

from lithify.datasets.iceberg.rewriting.head_rewrite import RewriteOutcome, Rewriting
from lithify.datasets.iceberg.rewriting.rewrite_deletes import RewritingDeletes
from lithify.datasets.iceberg.rewriting.rewrite_equality import RewritingEquality
from lithify.datasets.iceberg.rewriting.rewrite_manifests import RewritingManifests
from lithify.views import text
from lithify.views.blocks import Line, Shown, notes


def show_deletes(url: str, found: RewritingDeletes) -> Shown:
    """Show which delete files a run merged, dropped or skipped, or would."""
    removed_bytes = sum(file.file_size_in_bytes for file in found.removed)
    counts = {
        "rewritten_delete_files_count": len(found.removed) - found.dangling,
        "added_delete_files_count": found.would_add if found.dry_run else len(found.added),
        "removed_dangling_delete_files_count": found.dangling,
        "rewritten_bytes_count": removed_bytes,
        "added_bytes_count": sum(file.file_size_in_bytes for file in found.added),
        "delete_files": found.delete_files,
    }
    return _shown(url, found, counts, (_deletes_line(found, removed_bytes),))


def show_equality(url: str, found: RewritingEquality) -> Shown:
    """Show which equality delete files a run rewrote or skipped, or would."""
    removed_bytes = sum(file.file_size_in_bytes for file in found.removed)
    keys = sum(file.record_count for file in found.removed)
    counts = {
        "rewritten_equality_delete_files_count": len(found.removed),
        "rewritten_equality_delete_keys_count": keys,
        "rewritten_bytes_count": removed_bytes,
        "added_position_delete_files_count": len({file.file_path for file in found.added}),
        "deleted_rows_count": found.deleted_rows,
        "read_data_files_count": found.data_files,
        "equality_delete_files": found.delete_files,
    }
    lead = f"Of {text.count(found.delete_files, 'equality delete file')} {len(found.removed):,} "
    size = f"{keys:,} keys, {text.size(removed_bytes)}"
    if found.outcome is RewriteOutcome.NOTHING_TO_DO:
        line = f"Nothing to rewrite; the table has {text.count(found.delete_files, 'equality delete file')}."
    elif found.dry_run:
        files = text.count(found.data_files, "data file")
        line = f"{lead}would be rewritten ({size}); the keys of {files} would be read."
    else:
        rows = text.count(found.deleted_rows, "row")
        line = f"{lead}were rewritten ({size}); {rows} deleted by position instead."
    return _shown(url, found, counts, (Line(line),))


def show_manifests(url: str, found: RewritingManifests) -> Shown:
    """Show which manifests a run rewrote and why, or would, and which it skipped."""
    reasons = {reason.name.lower(): count for reason, count in found.plan.reasons.items()}
    counts = {
        "rewritten_manifests_count": found.rewritten,
        "added_manifests_count": found.added,
        "processed_entries_count": found.entries,
        "manifests": found.manifests,
        "reasons": reasons if found.rewritten else {},
    }
    return _shown(url, found, counts, _manifests_lines(found))


def _shown(url: str, found: Rewriting, counts: dict[str, Any], lines: tuple[Line, ...]) -> Shown:
    document = {
        "url": url,
        "dry_run": found.dry_run,
        "outcome": found.outcome.value,
        "why": found.why,
        **counts,
        "notes": list(found.notes),
    }
    if not found.is_done:
        lead = found.outcome.value.replace("_", " ").capitalize()
        lines = (Line(f"{found.why}. Nothing was rewritten.", f"{lead}:", is_bad=True),)
    return Shown(document, (*lines, notes(found.notes)))


def _deletes_line(found: RewritingDeletes, removed_bytes: int) -> Line:
    if found.outcome is RewriteOutcome.NOTHING_TO_DO:
        return Line(f"Nothing to rewrite; the table has {text.count(found.delete_files, 'delete file')}.")
    merged = len(found.removed) - found.dangling
    new = f"about {found.would_add:,}" if found.dry_run else f"{len(found.added):,}"
    would = "would be " if found.dry_run else ""
    return Line(
        f"Of {found.delete_files:,} delete files {merged:,} {would}merged into {new}, and "
        f"{found.dangling:,} dangling ones {would}dropped ({text.size(removed_bytes)} in total)."
    )


def _manifests_lines(found: RewritingManifests) -> tuple[Line, ...]:
    if found.outcome is RewriteOutcome.NOTHING_TO_DO:
        return (Line(f"Nothing to rewrite; the table has {text.count(found.manifests, 'manifest')}."),)
    does = "would be rewritten as about" if found.dry_run else "rewritten as"
    rewritten, are = text.count(found.rewritten, "manifest"), "is" if found.manifests == 1 else "are"
    done = Line(f"{rewritten} {does} {found.added:,}; {found.manifests:,} {are} left.")
    why = ", ".join(f"{count:,} {reason.value}" for reason, count in found.plan.reasons.items())
    return done, Line(f"Why: {why}.")
