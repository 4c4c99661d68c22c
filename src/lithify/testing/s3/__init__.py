"""An S3 server in memory, which can be slow, flaky and down, and which logs its requests.

    with S3Server(Weather(latency=latency_of_all(20), bandwidth=90e6)) as server:
        server.create_bucket("lake")
        ...                                 # any client of S3, at server.url
        server.weather = replace(server.weather, outage=Outage.HANG)
        chain = longest_chain(server.log)

`S3Server` runs in a thread of this process, `S3Process` and `python -m lithify.testing.s3` in a separate one.
Path style only; signatures and checksums are not checked.
"""

from lithify.testing.s3.log import LoggedRequest, by_class, longest_chain, most_in_flight
from lithify.testing.s3.process import S3Process
from lithify.testing.s3.quirks import Quirk
from lithify.testing.s3.requests import Operation, S3Verb
from lithify.testing.s3.server import S3Server
from lithify.testing.s3.weather import Fate, Latency, Outage, Weather, latency_of_all

__all__ = [
    "Fate",
    "Latency",
    "LoggedRequest",
    "Operation",
    "Outage",
    "Quirk",
    "S3Process",
    "S3Server",
    "S3Verb",
    "Weather",
    "by_class",
    "latency_of_all",
    "longest_chain",
    "most_in_flight",
]
