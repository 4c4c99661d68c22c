"""Databases in SlateDB's on-disk format."""
