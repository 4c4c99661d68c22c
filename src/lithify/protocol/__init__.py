"""The compaction protocol: compactions, their states, and which role may make which transition."""
