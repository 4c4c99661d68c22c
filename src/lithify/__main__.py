"""`lithify`, and `python -m lithify`. What is interrupted before a command has begun just ends."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command that the arguments name. What standard output does not take, and no command has told
    of, is told here."""
    try:
        from lithify.cli.main import app

        app(prog_name="lithify")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        from lithify.views.consoles import flush_output

        lost = flush_output()
        if lost is not None and not isinstance(lost, BrokenPipeError):  # who reads it may have enough
            sys.exit(f"standard output cannot be written: {lost.strerror}")


if __name__ == "__main__":
    main()
