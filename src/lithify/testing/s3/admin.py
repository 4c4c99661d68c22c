"""Control of a server by HTTP on the same port, under a path that cannot be a bucket's.

GET    /_admin/weather                                  the weather as JSON
PUT    /_admin/weather                                  change the fields of the JSON in the body
GET    /_admin/log                                      a line of JSON for each request that has ended
DELETE /_admin/log                                      clear the log
POST   /_admin/objects?bucket=…&prefix=…&folder=…       load the files of a folder of the server's machine
DELETE /_admin/objects?bucket=…&prefix=…                delete objects and uploads
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lithify.testing.s3.answers import S3Answer, S3Error
from lithify.testing.s3.requests import Request
from lithify.testing.s3.site import Site

ADMIN = "/_admin/"
WEATHER, LOG, OBJECTS = "weather", "log", "objects"


def administer(site: Site, request: Request) -> S3Answer:
    try:
        return _administer(site, request)
    except (KeyError, ValueError, TypeError, OSError) as error:
        return S3Answer(400, {"Content-Type": "text/plain"}, [f"{type(error).__name__}: {error}\n".encode()])
    except S3Error as error:
        return error.answer(request.path)


def _administer(site: Site, request: Request) -> S3Answer:
    query = request.query
    match request.method, request.path.removeprefix(ADMIN):
        case "GET", "weather":
            return _json(site.weather.to_json())
        case "PUT", "weather":
            site.weather = site.weather.changed(json.loads(b"".join(request.body)))
            return _json(site.weather.to_json())
        case "GET", "log":
            lines = "".join(logged.to_line() for logged in site.log)
            return S3Answer(200, {"Content-Type": "application/x-ndjson"}, [lines.encode()])
        case "DELETE", "log":
            site.log.clear()
            return S3Answer(204)
        case "POST", "objects":
            return _json(site.load(Path(query["folder"]), query["bucket"], query.get("prefix", "")))
        case "DELETE", "objects":
            return _json(site.delete(query["bucket"], query.get("prefix", "")))
    return S3Answer(404)


def _json(value: Any) -> S3Answer:
    return S3Answer(200, {"Content-Type": "application/json"}, [json.dumps(value).encode()])
