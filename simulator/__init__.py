"""A simulator that runs Lithify's own processes through all that can go wrong, one seed at a time.

    python -m simulator --seeds 1..10000 --jobs 2
    python -m simulator --seed 4711 --trace

1. Coordinators, workers and garbage collectors run their real code (`replaced` says what is replaced:
   the engine, the rows' format and waiting), beside a simulated SlateDB writer and readers and somebody
   who submits compactions, on one store in memory and over one virtual clock.
2. Every store call of every process lets time pass, and others act meanwhile. A seed decides the order,
   how long everything takes, and what goes wrong: crashes before and after each call took effect, lost
   answers, failures, delays, pauses after which a process goes on as a zombie, clocks that differ,
   tasks that fail, hang, run twice or survive their driver (`scenario`).
3. A judge sees every write and every deletion and knows what must hold (`rules`). In the end nothing goes
   wrong any more, and everything must come to rest, with nothing lost and nothing left over.

Another world, of several datasets in one pool, is in `several`. What worlds share is in `core`.

The same seed plays the same run, in any process. Needs the package `greenlet`.
"""

from simulator.core.outcome import Outcome, Violation
from simulator.simulate import simulate

__all__ = ["Outcome", "Violation", "simulate"]
