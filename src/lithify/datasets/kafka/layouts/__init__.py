"""How partitions lie in a store: each module reads one layout (`contract`), and may write it anew. The engine
knows none."""
