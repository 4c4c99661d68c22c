"""The compaction protocol: what a compaction is, its states, and who may change what."""
