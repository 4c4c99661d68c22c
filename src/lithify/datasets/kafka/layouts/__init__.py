"""Layouts of partitions in a store. Each module reads, and may write, one layout (`contract`); the engine
depends on none."""
