"""The `lithify` command."""
