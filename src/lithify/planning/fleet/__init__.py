"""What a fleet decides: who watches what and how often, where work goes, what starts and who takes it. Pure.

Every rule is a noun of its own. None knows a store, a clock or randomness: times are passed in, and where
chance would do, a hash does (`lithify.planning.fleet.placement`). Everything here may be lost with its
process: it is made anew from the ledgers and the next looks.
"""
