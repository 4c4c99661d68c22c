"""Checks of a database, a table or an installation. Each finding has a remedy."""
