"""What must hold in the world of a fleet."""

from __future__ import annotations

STARVED = "nobody with work waits for more claims than stated"
BAND = "the best band is admitted first, but for fair claims"
HINT_BAND = "a worker claims the best band first, but for fair claims"
HINT_STARVED = "no hint is passed over by more claims of a worker than stated"
QUOTA = "nobody admits beyond its quota"
SHARE = "one dataset has no more than its share"
CAP = "a tenant has no more than its cap"
RESERVE = "ordinary work leaves the reserve alone"
BACKLOG = "the backlog is no longer than its bound"
COUNTED = "all that was offered is queued, resting or counted as deferred"
RESTS = "what failed by its own fault rests, longer each time"
BLAME = "what fails with a poison worker does not rest for it"
SICK = "a poison worker rests as well, longer each time"
ROUTED = "work is in the queue that its size says"
OWNER = "one member watches a dataset"
SEEN = "a change is seen after a tenth of the silence before it"
IDLE = "no worker idles beside work it may do"
LOST = "claims are rarely lost"
DONE = "everything healthy is done in the end"

ALL = (
    *(
        STARVED,
        BAND,
        HINT_BAND,
        HINT_STARVED,
        QUOTA,
        SHARE,
        CAP,
        RESERVE,
        BACKLOG,
        COUNTED,
        RESTS,
        BLAME,
        SICK,
    ),
    *(ROUTED, OWNER, SEEN, IDLE, LOST, DONE),
)
