"""The invariants of this world by name. Every violation names one of these.

| rule       | says                                                                                        |
|------------|---------------------------------------------------------------------------------------------|
| DELETED    | no copy shows a deleted key, unless it is still to get a newer record of it                  |
| ABORTED    | no copy ever shows a row that was aborted                                                    |
| COMMITTED  | every copy shows the newest committed row of each key, with the same exception               |
| STUCK      | no copy waits for the end of a transaction that has ended in what it has                     |
| READERS    | nor does a registered reader keep what is gone, or miss what is there                        |
| FLOOR      | nor does any reader that takes no longer than the retention                                  |
| THRESHOLDS | thresholds never go down, and are never raised past what a member has said                   |
| EXPECTED   | no threshold is raised before each copy that the group was made with has joined              |
| OFFSETS    | copies of one log never seem to have different offsets, however they lag and are compacted    |
| MARKS      | what a member has said stays said                                                            |
| LEADERS    | only the leader of the newest epoch publishes, and changes neither epoch nor members         |
| CONVERGES  | in the end all copies and readers have the same latest map, thresholds are at the end, and   |
|            | no tombstone, marker or row of a transaction is left                                         |
| SURVIVES   | nothing ends by an error of its own                                                          |
"""

from __future__ import annotations

DELETED = "a deleted key stays deleted"
ABORTED = "an aborted row is never shown"
COMMITTED = "a committed row never vanishes"
STUCK = "no partition is stuck"
READERS = "a registered reader has what is there"
FLOOR = "who reads within the retention has what is there"
THRESHOLDS = "thresholds only grow, and never past a mark"
EXPECTED = "no threshold is raised before each expected copy has joined"
OFFSETS = "copies of one log never seem to differ"
MARKS = "what was said stays said"
LEADERS = "only the leader publishes"
CONVERGES = "all copies converge"
SURVIVES = "nothing ends by an error of its own"

ALL = tuple(text for name, text in dict(globals()).items() if name.isupper())
