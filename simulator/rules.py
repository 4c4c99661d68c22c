"""The invariants by name. Every violation names one of these.

| rule                    | says                                                                         |
|-------------------------|------------------------------------------------------------------------------|
| ROWS                    | every version of the database shows every reader what the model says         |
| NUMBERS                 | numbered files follow each other; a collected number counts for nobody        |
| OWNERS                  | each part of manifest and ledger is changed by its owner only                |
| EPOCHS                  | epochs, ids, horizons and sequence numbers only grow; a fenced coordinator    |
|                         | changes nothing                                                              |
| STATES                  | a compaction moves along the table of states; specs never change, progress    |
|                         | only grows, terminal states absorb, nothing active vanishes                  |
| DISJOINT                | compactions under way share no source and no destination                     |
| ONCE                    | a manifest changes by whole, Compacted compactions, each at most once, and    |
|                         | Completed are exactly those                                                  |
| KEPT                    | nothing is deleted that a manifest, a checkpoint, a reader, a compaction or a |
|                         | writer still needs                                                           |
| UNASKED                 | a coordinator of SlateDB's that is alive is closed by nobody who was not told |
|                         | to take over                                                                 |
| LEASES                  | everybody writes in the lease what is its own; a coordinator that is alive is |
|                         | asked, waited for, and left alone                                             |
| DRAINED                 | once nothing goes wrong any more, everything comes to rest in time           |
| CLEAN                   | in the end nothing is left that nobody needs                                 |
| SOUND                   | no process ends by an error of its own                                       |
"""

from __future__ import annotations

ROWS = "rows are neither lost nor resurrected"
NUMBERS = "numbered files follow each other"
OWNERS = "only the owner changes its part"
EPOCHS = "epochs only grow and fence"
STATES = "compactions follow their states"
DISJOINT = "compactions under way are disjoint"
ONCE = "each compaction is committed once"
KEPT = "nothing needed is deleted"
UNASKED = "nobody is closed unasked"
LEASES = "a lease is its holder's"
DRAINED = "everything comes to rest"
CLEAN = "nothing is left over"
SOUND = "no process ends by its own error"

ALL = tuple(text for name, text in dict(globals()).items() if name.isupper())
