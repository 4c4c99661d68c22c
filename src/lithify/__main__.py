"""`lithify`, and `python -m lithify`. What is interrupted before a command has begun just ends."""

import errno
import sys

INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> None:
    """Run the command that the arguments name. What standard output does not take, and no command has told
    of, is told here."""
    try:
        try:
            from lithify.cli.main import app

            app(prog_name="lithify")
        finally:
            from lithify.views.consoles import flush_output

            lost = flush_output()
            if lost is not None and not isinstance(lost, BrokenPipeError):  # who reads it may have enough
                raise lost
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_ROOM:
            raise
        sys.exit(f"standard output cannot be written: {error.strerror}")


if __name__ == "__main__":
    main()
