"""The history of one table that readers, holders and runs of expiry share, on virtual time, judged by what
anybody finds gone.

    python -m simulator --world history --seeds 1..10000 --jobs 2
    python -m simulator --world history --seed 4711 --trace

Real are expiry, holds, registered readers, the published watermark, pending files, reachability, the policy,
the ledger and the lineage of the table, with every request that they make. The table itself is PyIceberg's
metadata in memory; of its manifests and data files there are the names (`lake`). Whoever writes, reads with
Spark, or makes branches and tags is a few lines (`writers`, `streams`, `people`). `scenario` says what a seed
draws, `rules` what must hold.
"""

from simulator.history.simulate import simulate

__all__ = ["simulate"]
