"""The invariants of this world by name. Every violation names one of these.

| rule       | says                                                                                       |
|------------|--------------------------------------------------------------------------------------------|
| DONE       | in peace every healthy dataset with work is done within `Scenario.patience_ms`             |
| STARVED    | so is each beside a dataset that is hot all the time                                       |
| ONCE       | each compaction is committed once, and nothing is lost or doubled                          |
| COMMITTING | what is done is committed: it is neither tried again nor given up                          |
| BEATING    | a worker that beats keeps what it has                                                      |
| IDLE       | an idle dataset is never written, and what has come to rest is not written any more        |
| PEACE      | a live coordinator loses no leadership, and one that thaws takes nothing back              |
| FAILOVER   | in peace somebody leads what a dead coordinator led within `FAILOVER_MS`                   |
| BLAME      | what fails with a worker that fails whatever it tries is not counted against the work      |
| PAUSES     | a dataset that is broken is left alone for a pause that grows                              |
| PAUSED     | nothing of a queue that is paused is admitted or claimed                                   |
| QUEUES     | a worker claims only what is its queues'                                                   |
| NEEDED     | no version of the catalog goes that a member, or what it admitted or runs, needs           |
| GONE       | in the end those that nobody needs are gone                                                |
| SURVIVES   | nothing that is wrong with a dataset, or the store, ends a coordinator or a worker         |
| ANEW       | a dataset that was made anew is worked on, and nothing of the one before stays in its place |
| TOLD       | datasets with wanted work that is coordinated elsewhere are reported, and no others are    |
| FENCED     | no owner that is alive is fenced                                                           |
| CARED      | garbage and history of every dataset, idle ones too, are cared for again and again         |
| LEFT       | in the end nobody leads anything, and no board has a hint                                  |

Of admission (`admission_rules`):

| rule       | says                                                                                       |
|------------|--------------------------------------------------------------------------------------------|
| TURNS      | of N datasets with work in a queue none waits for more than 4 * (N + 1) claims             |
| BAND       | the best priority class is admitted first, but for fair claims                             |
| QUOTA      | no coordinator admits more than the queue has slots, and one                               |
| SHARE      | one dataset has no more than its share of them                                             |
| CAP        | one tenant has no more than its cap                                                        |
| RESERVE    | ordinary work leaves the reserve alone, where it is admitted and where it is claimed       |
| BACKLOG    | the backlog is no longer than its bound                                                    |
| COUNTED    | all that was offered is queued, resting or counted as deferred                             |
| RESTS      | what failed by its own fault rests, longer each time                                       |
| ROUTED     | work waits in the queue that its size says                                                 |
| OWNER      | one coordinator watches a dataset                                                          |
| SEEN       | a change is seen after a tenth of the silence before it                                    |
| SICK       | a worker that fails whatever it tries rests, longer each time                              |
| WORK       | no worker idles beside work it may do                                                      |
| LOST       | claims of what is offered to an idle worker are rarely lost                                |
"""

from __future__ import annotations

DONE = "everything healthy is done in time"
STARVED = "nothing waits for ever beside a hot dataset"
ONCE = "each compaction is committed once"
COMMITTING = "what is done is committed"
BEATING = "who beats keeps what it has"
IDLE = "an idle dataset is not written"
PEACE = "what a live coordinator leads stays its own"
FAILOVER = "what a dead coordinator led is taken over in time"
BLAME = "work is not blamed for its worker"
PAUSES = "what is broken is left alone for its pause"
PAUSED = "nothing of a paused queue is begun"
QUEUES = "a worker claims what is its queues'"
NEEDED = "no catalog goes that somebody needs"
GONE = "catalogs that nobody needs go"
SURVIVES = "nothing ends a coordinator or a worker"
ANEW = "a dataset that was made anew is another one"
TOLD = "datasets with wanted work that is coordinated elsewhere are reported, and no others"
FENCED = "an owner that is alive is not fenced"
CARED = "every dataset is cared for again and again"
LEFT = "nothing is left over"
TURNS = "no dataset with work waits for more claims than stated"
BAND = "the best priority class is admitted first, but for fair claims"
QUOTA = "no coordinator admits beyond the slots"
SHARE = "one dataset has no more than its share"
CAP = "a tenant has no more than its cap"
RESERVE = "ordinary work leaves the reserve alone"
BACKLOG = "the backlog is no longer than its bound"
COUNTED = "all that was offered is queued, resting or counted as deferred"
RESTS = "what failed by its own fault rests, longer each time"
ROUTED = "work waits in the queue that its size says"
OWNER = "one coordinator watches a dataset"
SEEN = "a change is seen after a tenth of the silence before it"
SICK = "a worker that always fails rests, longer each time"
WORK = "no worker idles beside work it may do"
LOST = "claims are rarely lost"

ALL = tuple(text for name, text in dict(globals()).items() if name.isupper())
