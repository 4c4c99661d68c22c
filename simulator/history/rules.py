"""The invariants of this world by name. Every violation names one of these.

| rule       | says                                                                                       |
|------------|--------------------------------------------------------------------------------------------|
| HOLDS      | whoever has a hold that was accepted and has not lapsed finds its snapshot, all that came   |
|            | after, and all their files                                                                 |
| RENEWED    | a hold that is renewed before it lapses is not refused                                      |
| READERS    | a registered reader finds the snapshot where it stands after what it has committed, all     |
|            | that came after, and all their files                                                       |
| COMPACTED  | the snapshot on which an active compaction of ours was planned is there                     |
| NAMED      | no file goes that a snapshot of the table names, or that is of a commit under way           |
| REFS       | no branch or tag loses its snapshot; where the catalog cannot promise that, the files of    |
|            | what was lost are never deleted                                                            |
| POLICY     | nothing goes that the rules of the table keep                                               |
| WATERMARK  | the watermark never goes down                                                              |
| GRACE      | files go when their snapshots are gone for the grace period, and not before: whoever began  |
|            | to read before then can go on for so long                                                  |
| LEFT       | in the end no file is left that only expired snapshots named                               |
| ENDS       | in the end a run does all there is to do                                                   |
| SURVIVES   | nothing ends by an error of its own                                                        |
"""

from __future__ import annotations

HOLDS = "what is held is there"
RENEWED = "a hold that is renewed in time is not refused"
READERS = "what a registered reader needs is there"
COMPACTED = "what an active compaction needs is there"
NAMED = "no file goes that a snapshot names"
REFS = "no branch or tag loses its snapshot"
POLICY = "nothing goes that the table keeps"
WATERMARK = "the watermark never goes down"
GRACE = "files go after the grace period"
LEFT = "no file of expired snapshots is left"
ENDS = "runs do all there is to do"
SURVIVES = "nothing ends by an error of its own"

ALL = tuple(text for name, text in dict(globals()).items() if name.isupper())
