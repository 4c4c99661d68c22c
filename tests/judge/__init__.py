"""The foreign judge: what the official SlateDB client makes of our work, and how tests ask it."""
