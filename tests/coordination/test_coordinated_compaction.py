"""Coordinated compaction as Redpanda tests it, by the names of those tests: those that are about the group.
How a copy is cleaned is the data plane's; here a reference cleaner does it.

Each story is a list of steps of `Copies`: what is done, and what is expected then.
"""

from __future__ import annotations

import pytest

from tests.coordination.copies import Copies

Story = list[tuple[object, ...]]

DELETED = "k=1 k- j=1"
"""A key that is deleted, and one that stays."""

STORIES: dict[str, Story] = {
    # coordinated_compaction_test.cc
    "test_stalled_recovery": [
        ("write", DELETED),
        ("join", "c"),
        ("copy", "b"),
        ("copy", "c", "a", 1),
        ("compact", "ab"),
        ("publish",),
        ("thresholds", 0, 0),
        ("waits_for", "c"),
        ("copy", "c"),
        ("publish",),
        ("thresholds", 0, 0),  # it has caught up, but not cleaned
        ("compact", "c"),
        ("publish",),
        ("thresholds", 3, 3),
        ("waits_for", ""),
        ("compact", "abc"),
        ("tombstones", "abc", 0),
        ("shows", "abc", "j=1"),
    ],
    "test_leadership_change": [
        ("write", "k=1 k=2 j=1 j-"),
        ("copy", "b", "a", 3),
        ("compact", "ab"),
        ("publish",),
        ("thresholds", 3, 3),
        ("copy", "b"),
        ("lead", "b"),
        ("compact", "b"),
        ("publish",),
        ("thresholds", 4, 4),
        ("publish_is_fenced", "a"),
    ],
    "test_leadership_change_during_distribution": [
        ("write", DELETED),
        ("copy", "b"),
        ("compact", "ab"),
        ("publish_fails",),
        ("thresholds", 0, 0),
        ("lead", "b"),
        ("publish_is_fenced", "a"),
        ("publish",),
        ("thresholds", 3, 3),
    ],
    "test_node_isolation": [
        ("join", "c"),
        ("write", DELETED),
        ("copy", "b"),
        ("copy", "c"),
        ("compact", "ab"),
        ("compact_unheard", "c"),
        ("publish",),
        ("thresholds", 0, 0),
        ("compact", "ab"),
        ("tombstones", "ab", 1),
        ("say", "c"),
        ("publish",),
        ("thresholds", 3, 3),
    ],
    "test_decommission": [
        ("join", "c"),
        ("write", DELETED),
        ("copy", "b"),
        ("copy", "c"),
        ("compact", "bc"),
        ("publish",),
        ("thresholds", 0, 0),
        ("waits_for", "a"),
        ("leave", "a"),
        ("publish_is_led_by", "b"),
        ("thresholds", 3, 3),
    ],
    "test_decommission2": [
        ("join", "c"),
        ("write", DELETED),
        ("copy", "b"),
        ("compact", "ab"),
        ("publish",),
        ("waits_for", "c"),
        ("leave", "c"),
        ("thresholds", 3, 3),  # at once
        ("compact", "ab"),
        ("tombstones", "ab", 0),
    ],
    "test_decommission_during_mtro_distribution": [
        ("join", "c"),
        ("write", DELETED),
        ("copy", "b"),
        ("compact", "ab"),
        ("publish_fails",),
        ("leave", "c"),
        ("publish_fails",),
        ("publish",),
        ("thresholds", 3, 3),
    ],
    "unclean_compaction": [
        ("write", "1:k=1 1:commit k-"),
        ("copy", "b"),
        ("compact", "ab", "resolves"),
        ("publish",),
        ("thresholds", 0, 3),
        ("compact", "ab", "resolves"),
        ("markers", "ab", 0),
        ("tombstones", "ab", 1),
        ("shows", "ab", ""),
    ],
    # tombstone_removal_e2e_test.py
    "test_single_slow_follower": [
        ("write", "k=1"),
        ("join", "c"),
        ("copy", "c"),
        ("write", "k- j=1"),
        ("copy", "b"),
        ("compact", "ab"),
        ("publish",),
        ("compact", "ab"),
        ("publish",),
        ("compact", "ab"),
        ("tombstones", "ab", 1),
        ("shows", "c", "k=1"),
        ("copy", "c", "b"),
        ("shows", "abc", "j=1"),
        ("compact", "c"),
        ("publish",),
        ("compact", "abc"),
        ("tombstones", "abc", 0),
        ("shows", "abc", "j=1"),
    ],
    "test_debug_endpoint": [
        ("write", DELETED),
        ("copy", "b", "a", 2),
        ("compact", "ab"),
        ("publish",),
        ("marks", "a", 3, 3),
        ("marks", "b", 2, 2),
        ("waits_for", "b"),
    ],
    # log_compaction_test.py, LogCompactionTxRemovalTest and the tests of upgrades
    "tx_removal_all_aborts": [
        ("write", "1:k=1 2:j=1 1:abort 2:abort k=2"),
        ("copy", "b"),
        ("compact", "ab"),
        ("publish",),
        ("in_transactions", "ab", 0),
        ("compact", "ab"),
        ("markers", "ab", 0),
        ("shows", "ab", "k=2"),
    ],
    "tx_removal_all_commits": [
        ("write", "1:k=1 2:j=1 1:k=2 1:commit 2:commit"),
        ("copy", "b"),
        ("compact", "ab"),
        ("publish",),
        ("in_transactions", "ab", 0),
        ("compact", "ab"),
        ("markers", "ab", 0),
        ("shows", "ab", "k=2 j=1"),
    ],
    "tx_removal_mixed": [
        ("write", "1:k=1 2:k=2 1:commit 2:abort 1:j=1 1:abort 2:i=1 2:commit"),
        ("copy", "b"),
        ("compact", "ab"),
        ("publish",),
        ("compact", "ab"),
        ("markers", "ab", 0),
        ("in_transactions", "ab", 0),
        ("shows", "ab", "k=1 i=1"),
    ],
    "tx_removal_multi_segment": [
        ("write", "1:k=1"),
        ("copy", "b"),
        ("compact", "ab"),
        ("publish",),
        ("thresholds", 0, 0),  # it is open
        ("write", "j=1 1:i=1 j=2"),
        ("copy", "b"),
        ("compact", "ab"),
        ("write", "1:abort h=1"),
        ("copy", "b"),
        ("compact", "ab"),
        ("publish",),
        ("thresholds", 6, 6),
        ("compact", "ab"),
        ("markers", "ab", 0),
        ("shows", "ab", "j=2 h=1"),
    ],
    "upgrade_three_segments_open_tx": [
        ("write", "k=1 1:k=2 j=1 k=3"),
        ("copy", "b"),
        ("compact", "ab"),
        ("publish",),
        ("thresholds", 1, 1),
        ("compact", "ab"),
        ("in_transactions", "ab", 1),
        ("write", "1:commit"),
        ("copy", "b"),
        ("compact", "ab"),
        ("publish",),
        ("thresholds", 5, 5),
        ("shows", "ab", "k=3 j=1"),
    ],
    "upgrade_two_segments_marker_survives_though_clean_has_passed_it": [
        ("write", "1:k=1 1:abort j=1"),
        ("copy", "b"),
        ("compact", "a"),
        ("compact", "b", "cleans"),
        ("publish",),
        ("thresholds", 3, 0),
        ("compact", "a"),
        ("markers", "ab", 1),
        ("in_transactions", "b", 1),
        ("shows", "ab", "j=1"),
        ("compact", "b"),
        ("publish",),
        ("thresholds", 3, 3),
        ("compact", "ab"),
        ("markers", "ab", 0),
        ("shows", "ab", "j=1"),
    ],
    # and what is ours
    "a restored copy begins anew": [
        ("write", "k=1"),
        ("copy", "b"),
        ("compact", "ab"),
        ("back_up", "b"),
        ("write", "k- j=1"),
        ("copy", "b"),
        ("compact", "ab"),
        ("publish",),
        ("compact", "a"),
        ("tombstones", "a", 0),
        ("restore", "b"),
        ("shows", "b", "k=1"),
        ("join", "b"),
        ("copy", "b"),
        ("shows", "ab", "j=1"),
        ("publish",),
        ("thresholds", 3, 3),
    ],
    "a copy that lags behind the thresholds adopts them": [
        ("write", DELETED),
        ("copy", "b"),
        ("compact", "ab"),
        ("publish",),
        ("join", "c"),
        ("marks", "c", 3, 0),  # there are no markers
        ("copy", "c", "b", 1),
        ("compact", "ab"),
        ("tombstones", "ab", 0),
        ("copy", "c"),
        ("shows", "abc", "j=1"),
    ],
    "a tombstone stays for a registered reader that is behind": [
        ("join_reader", "r", 1),
        ("write", DELETED),
        ("copy", "b"),
        ("compact", "ab"),
        ("publish",),
        ("thresholds", 1, 3),
        ("waits_for", "r"),
        ("compact", "ab"),
        ("tombstones", "ab", 1),
        ("commit_reader", "r", 2),
        ("publish",),
        ("compact", "ab"),
        ("tombstones", "ab", 0),
    ],
    "offsets that are reset backwards lower nothing": [
        ("join_reader", "r", 0),
        ("write", DELETED),
        ("copy", "b"),
        ("compact", "ab"),
        ("commit_reader", "r", 3),
        ("publish",),
        ("commit_reader", "r", 0),
        ("publish",),
        ("thresholds", 3, 3),
    ],
}


@pytest.mark.parametrize("name", STORIES)
def test_coordinated_compaction(name: str) -> None:
    copies = Copies("a", "b")
    for step, *arguments in STORIES[name]:
        getattr(copies, str(step))(*arguments)


def test_the_retention_is_a_floor_for_readers_that_nobody_registered() -> None:
    copies = Copies("a", retention_ms=1_000)
    copies.write(DELETED)
    copies.compact("a")
    copies.publish()
    copies.pass_ms(999)
    copies.compact("a")
    copies.tombstones("a", 1)
    copies.pass_ms(1)
    copies.compact("a")
    copies.tombstones("a", 0)


def test_a_tombstone_that_was_copied_stays_for_the_retention_in_the_copy_too() -> None:
    """A reader of this copy may have read what was deleted until this copy is clean."""
    copies = Copies("a", "b", retention_ms=1_000)
    copies.write(DELETED)
    copies.compact("a")
    copies.pass_ms(1_000)
    copies.copy("b")
    copies.compact("b")
    copies.publish()
    copies.compact("ab")
    copies.tombstones("a", 0)
    copies.tombstones("b", 1)
