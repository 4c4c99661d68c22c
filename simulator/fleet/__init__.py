"""Coordinators and workers of a fleet over many datasets, on virtual time, judged by what they write.

    python -m simulator --world fleet --seeds 1..10000 --jobs 2
    python -m simulator --world fleet --seed 4711 --trace

Real are fleet coordinators and workers, catalog, members, boards, bells, memory, wakes, leaderships,
coordinators, pools and workers, with every request that they make. A dataset is a shelf: a numbered list of
names (`shelves`), whose tasks take virtual time and put names together. `scenario` says what a seed draws,
`rules` what must hold.
"""

from simulator.fleet.simulate import simulate

__all__ = ["simulate"]
