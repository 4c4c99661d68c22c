"""Lithify: distributed compaction for data in object storage, on Spark."""

__version__ = "0.1.0"
