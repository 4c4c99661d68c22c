"""The logs that a pattern names: folders of partitions, or of topics, as `lithify.datasets.discovery` finds
folders. What was written beside a log, `orders-0.compacted`, is none."""

from __future__ import annotations

from urllib.parse import quote, unquote

from lithify.config.model import Config
from lithify.datasets.discovery import SAFE, folders
from lithify.datasets.kafka.places import OUTPUT_SUFFIX, PREFIX, store_url
from lithify.store.urls import split_scheme
from lithify.store.waiting import Waiting


def logs(pattern: str, config: Config, waiting: Waiting) -> list[str]:
    """URLs of the folders that match, in order."""
    of_store = store_url(pattern)
    scheme, rest = split_scheme(of_store)
    if scheme == "file":  # its folders are found as paths
        found = folders(unquote(rest.removeprefix("//").removeprefix("localhost")), config, waiting)
        found = [f"file://{quote(path, safe=SAFE)}" for path in found]
    else:
        found = folders(of_store, config, waiting)
    there = set(found)
    return [
        PREFIX + url
        for url in found
        if not (url.endswith(OUTPUT_SUFFIX) and url.removesuffix(OUTPUT_SUFFIX) in there)
    ]
