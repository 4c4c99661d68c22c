"""`lithify warm-up`: compiles ahead of time the code that the first compaction on a machine would wait
for."""

from __future__ import annotations

import os

from lithify.base.usercache import cache_folder
from lithify.cli.running import errors
from lithify.datasets.registry import all_registered
from lithify.views.consoles import write_line


def warm_up() -> None:
    """Compile what compactions run, ahead of the first one: in an image, or after an upgrade.

    The code is kept in the cache folder (LITHIFY_CACHE_DIR), for this version of Lithify, of Python and of
    its libraries, and for this kind of processor: on another one it is compiled again. Takes half a minute;
    a second when there is nothing to do.

    Example:

        lithify warm-up
    """
    with errors(False, stopped="Stopped. The next run begins anew."):
        from lithify.api.wiring import warm_up as warm_up_kind

        for kind in all_registered():
            if kind.warm_up:
                write_line(f"{kind.plural} …", at_once=True)
                warm_up_kind(kind)
        folder = cache_folder(os.environ)
        if all(kind.is_warmed_up(os.environ) for kind in all_registered()):
            write_line(f"Compiled code is kept in {folder}.")
        else:
            write_line(f"Nothing can be kept in {folder}: it is compiled in every process.")
