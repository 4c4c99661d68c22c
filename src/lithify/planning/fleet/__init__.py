"""Decisions of a fleet: which coordinator watches which dataset and how often, where work is routed, which
work starts, and which worker claims it. Pure.

Each rule has a class or module of its own. None reads a store, a clock or a random number: times are
parameters, and a hash replaces randomness (`lithify.planning.fleet.placement`). All state may be lost with
its process: it is rebuilt from the ledgers and the next polls.
"""
