"""`lithify warm-up`: compiles ahead of time the code that the first compaction on a machine would wait
for."""

from __future__ import annotations

import os

from lithify.base.usercache import cache_folder
from lithify.cli.running import errors
from lithify.datasets.registry import all_registered
from lithify.views.consoles import write_line


def warm_up() -> None:
    """Compile the code of compactions ahead of the first one, for example in an image or after an upgrade.

    The code is cached (LITHIFY_CACHE_DIR) for this version of Lithify, of Python and of its libraries, and
    for this type of processor: on another one it is compiled again. Takes half a minute, or a second if the
    code is cached already.

    Example:

        lithify warm-up
    """
    with errors(False, stopped="Stopped. The next run starts from the beginning."):
        from lithify.api.wiring import warm_up as warm_up_kind

        for kind in all_registered():
            if kind.warm_up:
                write_line(f"{kind.plural} …", at_once=True)
                warm_up_kind(kind)
        folder = cache_folder(os.environ)
        if all(kind.is_warmed_up(os.environ) for kind in all_registered()):
            write_line(f"Compiled code is cached in {folder}.")
        else:
            write_line(f"Nothing can be cached in {folder}: the code is compiled in every process.")
