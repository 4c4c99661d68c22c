"""The Python API for a group of copies of a keyed log, with the operations of `lithify group`.

    import lithify

    group = lithify.Group("s3://bucket/groups/orders")
    group.init(["eu", "us", "ap"])
    group.join("warehouse", {0: 81_240, 1: 79_113})
    print(group.show().document["thresholds"])

Copies that Lithify compacts are named when the group is created, or with `expect`, and join by themselves
(settings `kafka.group` and `kafka.member`). A reader with
state of its own joins here, and calls `join` again whenever it has committed more. All errors are
`lithify.LithifyError`s. `Refused` is raised before anything is written. docs/groups.md has the reasons.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from lithify.api import arguments, wiring
from lithify.api.client import Settings, settled
from lithify.base.clock import Clock, SystemClock
from lithify.base.errors import Fenced, Refused
from lithify.base.ids import Ids, RandomIds
from lithify.base.jsonvalues import whole_number
from lithify.coordination.thresholds import MAX_POSITION
from lithify.datasets.waiting import command_waiting
from lithify.views.blocks import Shown
from lithify.views.groups import show_group
from lithify.watermarks.groups import GroupRole, Marks, PartitionStanding
from lithify.watermarks.model import GroupMember

_MAX_LEADERS = 5


class Group:
    """The group whose folder is at `url`. `settings` are as in `lithify.open`; `clock` and `ids` are for
    tests."""

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.url = url = arguments.place("url", url)
        config = settled(settings)
        self._clock = clock if clock is not None else SystemClock()
        self._files = wiring.group_files(
            url, config, command_waiting(url, config), self._clock, ids if ids is not None else RandomIds()
        )

    def init(self, members: Sequence[str]) -> Shown:
        """Create the group. `members` are the names of its copies: nothing is removed in any copy before each
        of them has joined and reported. Raise `Refused` if there is another group, or no name."""
        names = arguments.texts("members", members)
        if not names:
            raise Refused(
                "name the copies of the group, all that exist: --members eu,us,ap; for one copy, --members eu"
            )
        return show_group(self.url, self._files.begin(names))

    def expect(self, members: Sequence[str]) -> Shown:
        """Wait for more copies, and return the group. From now on nothing is removed until they have joined,
        so they can be copied meanwhile, each from a member to its end."""
        names = arguments.texts("members", members)
        if not names:
            raise Refused("name the copies to wait for")
        return show_group(self.url, self._files.expect(names))

    def show(self) -> Shown:
        """Return members, their marks, the thresholds, and which members each threshold waits for. Writes
        nothing."""
        return show_group(self.url, self._files.read())

    def join(self, name: str, offsets: Mapping[int, int]) -> Shown:
        """Add a reader to the group, or report its progress, and return the group. `offsets` has, by
        partition, the first offset that the reader has not committed. Lower offsets than before change
        nothing.

        Raise `Refused` if records that a new reader lacks may have been removed, if the name belongs to a
        copy, and for numbers that are not whole or are negative.
        """
        name = arguments.text("name", name)
        if not isinstance(offsets, Mapping):
            raise Refused(f"{offsets!r:.80} is not a mapping of partitions to offsets")
        if not offsets:
            raise Refused("give the reader's offset in each partition, for example --at 0=81240")
        try:
            for number in (*offsets.keys(), *offsets.values()):
                whole_number(number, most=MAX_POSITION)
        except ValueError as error:
            raise Refused(f"partitions and offsets must be non-negative whole numbers: {error}") from None
        there = self._files.read().members.get(name)
        if there is not None and there.role is not GroupRole.READER:
            raise Refused(f"{name} is a {there.role} of the group; take another name")
        member = GroupMember(name, self._files.new_incarnation()) if there is None else there.member
        if there is None:
            self._files.join(member, GroupRole.READER, offsets)
        said = {partition: PartitionStanding(Marks(clean=at), at) for partition, at in offsets.items()}
        self._files.say(member, said)
        return self._published()

    def leave(self, name: str) -> Shown:
        """Remove a member, whether copy or reader, or stop waiting for an expected one, and return the group.
        Records that only this member needed may be removed from now on. Raise `Refused` if there is no such
        member."""
        name = arguments.text("name", name)
        group = self._files.read()
        if name not in group.members and name not in group.expected:
            raise Refused(f"{self.url}: has no member {name!r}; `lithify group show` lists the members")
        return show_group(self.url, self._files.leave(name))

    def _published(self) -> Shown:
        for _ in range(_MAX_LEADERS):
            try:
                return show_group(self.url, self._files.publish(self._files.lead(socket.gethostname())))
            except Fenced:
                continue  # another process published at the same time
        return self.show()
