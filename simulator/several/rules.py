"""The invariants of this world by name. Every violation names one of these.

| rule      | says                                                                                      |
|-----------|-------------------------------------------------------------------------------------------|
| COMMITTED | a healthy unit is committed in time, whatever else fails (`Scenario.patience_ms`)           |
| PLANNED   | what has work is planned while its planner has a free slot; what is held back takes none    |
| TURNS     | of N datasets with something to claim, each waits for at most AGEING_TURNS + N - 1 claims   |
|           | of others in its pool; in a dataset, a compaction for so many of its N compactions          |
| URGENT    | the most urgent of what waits is claimed next, by its priority now and its age in claims    |
| IDLE      | no slot idles while something may be claimed                                                |
| PAUSES    | what failed is left alone for its pause: a compaction, a dataset, a look                    |
| ENGINE    | an engine that is down counts no attempts                                                   |
| ONCE      | a failure is counted once                                                                  |
| GIVEN_UP  | what has failed `max_attempts` times is given up, and not tried more often                  |
| SURVIVES  | nothing that is wrong with one dataset ends a pool or a coordinator                         |
| RETURNS   | a dataset that is well again is worked on within its pause                                  |
| DRAINED   | everything healthy is done in the end                                                       |
"""

from __future__ import annotations

COMMITTED = "healthy units are committed in time"
PLANNED = "what has work is planned while there is a free slot"
TURNS = "nobody waits for more turns than promised"
URGENT = "the most urgent is next"
IDLE = "no slot idles while something waits"
PAUSES = "what failed is left alone for its pause"
ENGINE = "an engine that is down counts no attempts"
ONCE = "a failure is counted once"
GIVEN_UP = "what failed too often is given up"
SURVIVES = "one dataset ends nobody"
RETURNS = "what is well again is worked on"
DRAINED = "everything healthy is done in the end"

ALL = tuple(text for name, text in dict(globals()).items() if name.isupper())
