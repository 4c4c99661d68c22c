"""What MkDocs is told beside mkdocs.yml: pages that are no files of docs/, and links that leave it."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File, Files

from website.links import ROOT_PAGES, relinked
from website.navigation import whole
from website.reference import ROOT, pages


def on_config(config: Any) -> Any:
    """Add to the table of contents what it does not name."""
    config.nav = whole(config.nav, ROOT / "docs")
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the documents of the repository's root and the pages of reference."""
    made = pages() | {page: (ROOT / source).read_text() for source, page in ROOT_PAGES.items()}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Mend its links."""
    return relinked(markdown, page.file.src_uri)
