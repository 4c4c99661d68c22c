"""`python -m lithify`: the same as `lithify`."""

from lithify.cli.main import app

if __name__ == "__main__":
    app(prog_name="lithify")
