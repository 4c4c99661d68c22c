"""What there is to show of a rewrite of a table's delete files."""

from __future__ import annotations

from lithify.datasets.iceberg.rewrite_deletes import DONE, Outcome, RewritingDeletes
from lithify.views import text
from lithify.views.blocks import Line, Shown, notes


def show_deletes(url: str, found: RewritingDeletes) -> Shown:
    """What a run merged and dropped, or would; what it left alone."""
    removed_bytes = sum(file.file_size_in_bytes for file in found.removed)
    added_bytes = sum(file.file_size_in_bytes for file in found.added)
    document = {
        "url": url,
        "dry_run": found.dry_run,
        "outcome": found.outcome.value,
        "why": found.why,
        "rewritten_delete_files_count": len(found.removed) - found.dangling,
        "added_delete_files_count": found.would_add if found.dry_run else len(found.added),
        "removed_dangling_delete_files_count": found.dangling,
        "rewritten_bytes_count": removed_bytes,
        "added_bytes_count": added_bytes,
        "delete_files": found.delete_files,
        "notes": list(found.notes),
    }
    return Shown(document, (_line(found, removed_bytes), notes(found.notes)))


def _line(found: RewritingDeletes, removed_bytes: int) -> Line:
    if found.outcome not in DONE:
        lead = found.outcome.value.replace("_", " ").capitalize()
        return Line(f": {found.why}. Nothing was rewritten.", lead, is_bad=True)
    if found.outcome is Outcome.NOTHING_TO_DO:
        return Line(f"Nothing to rewrite; the table has {found.delete_files:,} delete files.")
    merged = len(found.removed) - found.dangling
    new = f"about {found.would_add:,}" if found.dry_run else f"{len(found.added):,}"
    would = "would be " if found.dry_run else ""
    return Line(
        f"Of {found.delete_files:,} delete files {merged:,} {would}merged into {new}, and {found.dangling:,} "
        f"that apply to nothing {would}dropped ({text.size(removed_bytes)} in all)."
    )
