"""Finds the logs that a pattern names: folders of partitions or of topics (`lithify.datasets.discovery`),
without the outputs beside logs such as `orders-0.compacted`.
"""

from __future__ import annotations

from lithify.config.model import Config
from lithify.datasets.discovery import folders
from lithify.datasets.kafka.places import OUTPUT_SUFFIX
from lithify.store.resilience.waiting import WaitPolicy


def logs(pattern: str, config: Config, waiting: WaitPolicy) -> list[str]:
    """Return the URLs of the matching folders, in order."""
    found = folders(pattern, config, waiting)
    there = set(found)
    return [
        url for url in found if not (url.endswith(OUTPUT_SUFFIX) and url.removesuffix(OUTPUT_SUFFIX) in there)
    ]
