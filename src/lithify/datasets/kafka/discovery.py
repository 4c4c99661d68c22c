"""Finds the logs that a pattern names: folders of partitions or of topics (`lithify.datasets.discovery`),
without the outputs next to logs, such as `orders-0.compacted`, and without the cluster's own metadata.
"""

from __future__ import annotations

from collections.abc import Container

from lithify.config.model import Config
from lithify.datasets.discovery import folders
from lithify.datasets.kafka.layouts.metadata_log import METADATA_TOPIC
from lithify.datasets.kafka.places import OUTPUT_SUFFIX
from lithify.store.resilience.waiting import WaitPolicy


def logs(pattern: str, config: Config, waiting: WaitPolicy) -> list[str]:
    """Return the URLs of the matching folders, in order."""
    found = folders(pattern, config, waiting)
    there = set(found)
    return [url for url in found if not (_is_output(url, there) or _is_metadata(url))]


def _is_metadata(url: str) -> bool:
    return url.rpartition("/")[2].startswith(METADATA_TOPIC)


def _is_output(url: str, there: Container[str]) -> bool:
    return url.endswith(OUTPUT_SUFFIX) and url.removesuffix(OUTPUT_SUFFIX) in there
