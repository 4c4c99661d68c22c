"""Lithify beside SlateDB's own compactor, on the same data in the same run (`make bench`)."""
