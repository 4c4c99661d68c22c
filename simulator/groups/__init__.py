"""The world of a group: copies of one keyed log and readers of it, compacted each by itself while things go
wrong.

    python -m simulator --world groups --seeds 1..10000 --jobs 2

Real are the group's rules and objects (`lithify.watermarks.groups`, `lithify.coordination.groups`) with every
request that they make. A copy is a list of records, compacted by a reference cleaner that believes in marks
(`log`), so that a mark or a threshold that says too much shows. Who plays: a producer with transactions;
copies that copy from each other and compact; leaders that take each other's place; registered readers with
state, and readers whom nobody knows; a person who removes copies, lets them come back, and restores them from
backups, whether he says so or not; somebody who publishes thresholds that are too high. `rules` has the
invariants.
"""

from simulator.groups.simulate import simulate

__all__ = ["simulate"]
