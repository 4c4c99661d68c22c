"""Lithify's processes beside the real client: deployment shapes, and what happens when they are killed."""
