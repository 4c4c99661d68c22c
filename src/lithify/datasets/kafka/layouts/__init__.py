"""How partitions lie in a store: each module reads one layout, and writes it anew. The engine knows none."""
