"""Compiled code for pages (`pages`); `warm_up` compiles it ahead of time."""
