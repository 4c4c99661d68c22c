"""Links of the documents, which are written for the repository, as they must be in the site.

1. A link to a document that is a page of the site becomes one to that page.
2. A link to any other file of the repository becomes one to where the repository can be looked at.
3. All others stay as they are: of a page to itself, and to other sites.
"""

from __future__ import annotations

import posixpath
import re

REPOSITORY = "https://github.com/lithify/lithify"
ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "vulnerabilities.md",
}
"""Documents outside docs/ that are pages too."""
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def source_of(page: str) -> str:
    """The file of the repository that a page is made of."""
    return next((source for source, made in ROOT_PAGES.items() if made == page), f"docs/{page}")


def relinked(text: str, page: str) -> str:
    """The text of a page with links as the site has them. `page` is its path in the site."""
    folder = posixpath.dirname(source_of(page))

    def replace(match: re.Match[str]) -> str:
        before, target, anchor, after = match[1], match[2], match[3] or "", match[4]
        if re.match(r"[a-z]+:|/", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in ROOT_PAGES:
            made = ROOT_PAGES[path]
        elif path.startswith("docs/"):
            made = path.removeprefix("docs/")
        else:
            return f"{before}{REPOSITORY}/blob/main/{path}{anchor}{after}"
        return f"{before}{posixpath.relpath(made, posixpath.dirname(page) or '.')}{anchor}{after}"

    return _LINK.sub(replace, text)
