"""The datasets that a pattern names, where they are folders: `s3://bucket/tenants/*/db`.

1. The path is walked level by level. Up to the next `*` nothing is asked for. A level with a `*` is one
   listing with a delimiter for each folder so far; what comes behind the last `*` is appended unseen.
2. So what is found may be no dataset: who opens it finds out. Of ten thousand folders in one that costs ten
   listings, and nothing else.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from lithify.config.model import Config
from lithify.errors import Refused
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store, split_scheme
from lithify.store.waiting import Waiting

MAX_FOUND = 1_000_000
SAFE = "/!$&'()+,:;=@~"
"""What stands in the path of a URL as it is."""


def folders(pattern: str, config: Config, waiting: Waiting) -> list[str]:
    """URLs of the folders that match, in order."""
    scheme, _ = split_scheme(pattern)
    root = "/" if scheme is None else "/".join(pattern.split("/")[:3])
    if scheme == "file":
        root = "file:///"
    store, _ = open_store(root, config.store_options, waiting)
    start = "" if scheme in (None, "file") else f"{root}/"
    if not start:
        return [f"/{key}" for key in _walk(store, pattern.removeprefix("file:").strip("/"))]
    return [
        start + quote(key, safe=SAFE) for key in _walk(store, unquote(pattern.removeprefix(start)).strip("/"))
    ]


def _walk(store: ObjectStore, path: str) -> list[str]:
    """Keys of folders."""
    found = [""]
    for name in path.split("/"):
        if "*" not in name:
            found = [join(key, name) for key in found]
            continue
        fits = re.compile("[^/]+".join(re.escape(part) for part in name.split("*")))
        found = [
            folder
            for key in found
            for folder in store.folder(key).folders
            if fits.fullmatch(folder.rpartition("/")[2])
        ]
        if len(found) > MAX_FOUND:
            raise Refused(f"{path}: more than {MAX_FOUND} folders match; name fewer")
    return sorted(found)
