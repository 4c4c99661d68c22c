"""`lithify`, and `python -m lithify`. What is interrupted before a command has begun just ends."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command that the arguments name."""
    try:
        from lithify.cli.main import app

        app(prog_name="lithify")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
