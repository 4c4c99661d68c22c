"""`lithify mirror`: copies databases as points in time, and `lithify restore`, which brings one back."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Annotated

import typer

from lithify.base.errors import DatasetNotFound, Fenced, LithifyError, Refused, StoreError
from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.values import age_s, time_of
from lithify.observe.logs import LOGGER
from lithify.views.consoles import write_document

if TYPE_CHECKING:
    from lithify.api.copies import Mirror
    from lithify.views.blocks import Shown

_STOPPED = "Stopped. The points that were taken can be restored; the next run continues from there."
_MIN_EVERY_S = 1.0


@command(stopped=_STOPPED)
def mirror(
    context: CommandContext,
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The database, or a pattern such as s3://bucket/tenants/*/db."),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="MIRROR",
            help="An empty place, or the place of this database's mirror. For a pattern, a folder: each "
            "mirror lies there at the path that its database has from the first * on.",
        ),
    ],
    every: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Repeat this often, until stopped; default: once.", show_default=False
        ),
    ] = None,
    keep: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="How far back any state can be restored; default: 24h.",
            show_default=False,
        ),
    ] = "24h",
    keep_points: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Keep at least this many of the newest points; default: 1.",
            show_default=False,
        ),
    ] = 1,
) -> None:
    """Copy a database to another place, as a point in time that `lithify restore` brings back.

    A point has everything that the database's clients have made durable until then, also in the write-ahead
    log. Each SST is copied once; later points copy only what is new. Readers and writers go on. While SSTs
    are copied, a checkpoint in the database protects them from garbage collection; otherwise nothing is
    written there. If the command is killed, the next one continues.

    Examples:

        lithify mirror s3://bucket/my-db s3://backup/my-db --keep 30d

        lithify mirror 's3://bucket/tenants/*/db' gs://backup/tenants --every 1m
    """
    every_s = None if every is None else age_s("--every", every)
    if every_s is not None and every_s < _MIN_EVERY_S:
        raise Refused(f"--every {every}: repeat at most once a second")
    keep_s = age_s("--keep", keep)
    run = _MirrorRun(context, url, target, keep_s, keep_points, is_repeated=every_s is not None)
    run.once()
    if every_s is None:
        run.end()
        return
    while True:
        time.sleep(every_s)
        run.once()


class _MirrorRun:
    """The sessions of one command."""

    def __init__(
        self,
        context: CommandContext,
        url: str,
        target: str,
        keep_s: float,
        keep_points: int,
        *,
        is_repeated: bool,
    ) -> None:
        self._context = context
        self._place = url, target
        self._keep = keep_s, keep_points
        self._is_repeated = is_repeated
        self._mirrors: dict[str, Mirror] = {}
        self._ended: set[str] = set()
        """Databases that another process mirrors now."""
        self._failures: dict[str, LithifyError] = {}
        """The last error of each database, until it is mirrored again."""

    def once(self) -> None:
        """Take a point of each database. An error of a single database is raised unless it may pass; one of
        several is logged and does not keep the others from being mirrored."""
        from lithify.api.copies import pairs

        is_pattern = "*" in self._place[0]
        try:
            places = pairs(*self._place, self._context.config)
        except StoreError as error:
            if not self._mirrors:
                raise
            self._failed(self._place[0], error)
            return
        if not places:
            raise Refused(f"{self._place[0]}: nothing matches this pattern")
        for url, target in places:
            if url in self._ended:
                continue
            try:
                self._take(url, target)
            except DatasetNotFound as error:
                if not is_pattern:
                    raise
                logging.getLogger(LOGGER).debug("%s: %s", url, error)
            except LithifyError as error:
                may_pass = isinstance(error, StoreError) and url in self._mirrors
                if not is_pattern and not may_pass:
                    raise
                if isinstance(error, Fenced):
                    self._ended.add(url)
                self._failed(url, error)

    def end(self) -> None:
        """Raise the first error, if there was any. Raise `Refused` if there was no database."""
        for error in self._failures.values():
            raise error
        if not self._mirrors:
            raise Refused(f"{self._place[0]}: there is no database at any place that matches")

    def _take(self, url: str, target: str) -> None:
        from lithify.api.copies import Mirror

        found = self._mirrors.get(url)
        if found is None:
            keep_s, keep_points = self._keep
            config = self._context.config
            found = Mirror(url, target, keep_s=keep_s, keep_points=keep_points, settings=config)
        shown = found.take_point()
        self._mirrors[url] = found
        self._failures.pop(url, None)
        self._show(shown)

    def _show(self, shown: Shown) -> None:
        if not self._is_repeated and "*" not in self._place[0]:
            self._context.show(shown)
        elif self._context.as_json:
            write_document(json.dumps(shown.document), at_once=True)
        elif shown.document["is_new"]:
            self._context.show(shown)

    def _failed(self, url: str, error: LithifyError) -> None:
        before = self._failures.get(url)
        if before is None or str(before) != str(error):
            logging.getLogger(LOGGER).error("%s is not mirrored: %s", url, error)
        self._failures[url] = error


@command(stopped="Stopped. The same command continues.")
def restore(
    context: CommandContext,
    mirror: Annotated[
        str,
        typer.Argument(metavar="MIRROR", help="The place of a mirror, or a pattern with *."),
    ],
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="An empty place for the database; for a pattern, the folder of all of them."
        ),
    ],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Restore the state at this time, such as 2025-01-31T12:00:00Z; default: the newest. "
            "`lithify inspect points` lists what there is.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Restore a database from its mirror to an empty place.

    The mirror is checked first: everything the point needs must be there. Nothing is ever overwritten. The
    restored database opens with any SlateDB client, which replays the write-ahead log. If the command is
    killed, the same command continues.

    Examples:

        lithify restore s3://backup/my-db s3://bucket/my-db-restored

        lithify restore s3://backup/my-db s3://bucket/my-db-restored --at 2025-01-31T12:00:00Z
    """
    from lithify.api.copies import pairs
    from lithify.api.copies import restore as restore_one

    moment = None if at is None else time_of(at)
    found = pairs(mirror, url, context.config)
    if not found:
        raise Refused(f"{mirror}: nothing matches this pattern")
    failures: list[LithifyError] = []
    seen = 0
    for source, place in found:
        try:
            shown = restore_one(source, place, at=moment, settings=context.config)
        except LithifyError as error:
            if "*" not in mirror:
                raise
            if not isinstance(error, DatasetNotFound):
                logging.getLogger(LOGGER).error("%s is not restored: %s", source, error)
                failures.append(error)
            continue
        seen += 1
        if context.as_json and "*" in mirror:
            write_document(json.dumps(shown.document), at_once=True)
        else:
            context.show(shown)
    if failures:
        raise failures[0]
    if not seen:
        raise Refused(f"{mirror}: there is no mirror at any place that matches")
