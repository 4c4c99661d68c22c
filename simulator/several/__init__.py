"""Several datasets of several kinds in one pool of workers, on virtual time, judged by fairness.

    python -m simulator --world several --seeds 1..10000 --jobs 2
    python -m simulator --world several --seed 4711 --trace

Coordinators, workers, pools, their room, planners, validation, commits, ledgers and journals are real; what
a range does is a toy (`replaced`). `scenario` says what a seed draws, `rules` what must hold.
"""

from simulator.several.simulate import simulate

__all__ = ["simulate"]
