"""The dashboard's facts and actions as JSON: the documents that commands print with `--json`.

`/api/openapi.json` describes them. An error is an object with `error` and `message`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lithify import __version__
from lithify.base.errors import LithifyError, Refused, StoreUnavailable
from lithify.base.jsonvalues import UNDECODABLE
from lithify.observe.secrets import concealed
from lithify.views.documents import plain
from lithify.web.actions import ACTIONS, act
from lithify.web.dashboard import ATTENTION, KINDS, SORTS, Dashboard, PageRequest, asked_of_list
from lithify.web.facts import FLEET, HISTORY, LIST, PLAN, STATUS, Rendered
from lithify.web.readers import CachedPart, PagePart
from lithify.web.rendering import clean
from lithify.web.verdicts import DatasetLevel

PATIENCE_S = 20.0
PARTS: dict[str, PagePart] = {part.name: part for part in (STATUS, PLAN, HISTORY)}
Answer = Callable[[Request], Awaitable[Response]]


def api_routes(dashboard: Dashboard) -> list[Route]:
    api = Api(dashboard)
    one = "/api/datasets/{id:str}"
    gets: list[tuple[str, Answer]] = [("/api/datasets", api.datasets), ("/api/openapi.json", api.described)]
    gets += [(f"{one}/{name}", api.part) for name in PARTS]
    if dashboard.fleet is not None:
        gets += [
            ("/api/fleet", api.fleet),
            ("/api/fleet/datasets", api.fleet_datasets),
            ("/api/queues/{name:str}", api.queue),
        ]
    return [
        *(Route(path, _told(answer), methods=["GET"]) for path, answer in gets),
        *(Route(f"{one}/{action}", _told(api.act), methods=["POST"]) for action in ACTIONS),
        Route("/api/{rest:path}", _told(_nothing)),
    ]


class Api:
    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    async def datasets(self, request: Request) -> Response:
        """Return a page of the list of datasets, with a summary of each."""
        query = asked_of_list({name: [text] for name, text in request.query_params.items()})
        listed = await self._dashboard.listed(query)
        wanted = self._dashboard.wanted_of_list(listed)
        await self._dashboard.look(PageRequest(wanted.parts, PATIENCE_S, wanted.swept))
        listed = self._dashboard.refreshed(listed)
        found = [
            {
                "id": one.id,
                "url": one.url,
                "tenant": one.tenant,
                "level": one.verdict.level.value,
                "verdict": plain(asdict(one.verdict)),
                "summary": None if one.summary is None else _without_verdict(asdict(one.summary)),
                "last_commit_ms": one.last_ms,
                "read_ms": one.read_ms or None,
                "error": one.error,
            }
            for one in listed.shown
        ]
        counts = {level.value: listed.count(level) for level in DatasetLevel}
        return _json(
            clean(
                {
                    "datasets": found,
                    "total": listed.total,
                    "page": listed.page,
                    "pages": listed.pages,
                    "counts": counts,
                }
            )
        )

    async def part(self, request: Request) -> Response:
        """Return the document of the command that the path names."""
        url = await self._url(request)
        name = request.url.path.rpartition("/")[2]
        wanted = PageRequest([(self._dashboard.source(url), PARTS[name])], PATIENCE_S)
        (seen,) = await self._dashboard.look(wanted)
        return _document(seen)

    async def fleet(self, request: Request) -> Response:
        """Return the document of `lithify fleet status`."""
        wanted = PageRequest([(self._dashboard.fleet_source, FLEET)], PATIENCE_S)
        (seen,) = await self._dashboard.look(wanted)
        return _document(seen)

    async def fleet_datasets(self, request: Request) -> Response:
        """Return the document of `lithify fleet list`."""
        wanted = PageRequest([(self._dashboard.fleet_source, LIST)], PATIENCE_S)
        (seen,) = await self._dashboard.look(wanted)
        return _document(seen)

    async def queue(self, request: Request) -> Response:
        """Return the document of `lithify queue info`."""
        wanted = PageRequest([(self._dashboard.fleet_source, FLEET)], PATIENCE_S)
        (seen,) = await self._dashboard.look(wanted)
        if seen is None or seen.value is None:
            return _document(seen)
        found = seen.value.facts.queues.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return Response(found.json, media_type="application/json")

    async def act(self, request: Request) -> Response:
        """Do the action that the path names; 403 without a token."""
        if not request.state.may_act:
            raise HTTPException(403, "actions need a token; set web.token")
        url = await self._url(request)
        action = request.url.path.rpartition("/")[2]
        done = await act(self._dashboard.source(url), action, _ids(await request.body()))
        return _json(clean(done))

    async def described(self, request: Request) -> Response:
        return _json(description(has_fleet=self._dashboard.fleet is not None))

    async def _url(self, request: Request) -> str:
        url = await self._dashboard.url_of(request.path_params["id"])
        if url is None:
            raise HTTPException(404)
        return url


def _without_verdict(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name != "verdict"}


def _ids(body: bytes) -> list[str]:
    """Return the compactions that a body names: `{"compactions": […]}`; an empty body names none."""
    try:
        given = json.loads(body or b"{}")
    except UNDECODABLE:
        given = None
    if not isinstance(given, dict) or not set(given) <= {"compactions"}:
        raise HTTPException(400, 'the body is not {"compactions": [ids]}')
    ids = given.get("compactions", [])
    if not isinstance(ids, list) or not all(isinstance(found, str) for found in ids):
        raise HTTPException(400, 'the body is not {"compactions": [ids]}')
    return ids


def _document(seen: CachedPart | None) -> Response:
    if seen is None or not isinstance(seen.value, Rendered):
        message = "it is still being read; retry later" if seen is None else seen.error
        return _json({"error": "NotRead", "message": message}, 503, {"retry-after": "5"})
    headers = {"x-lithify-read-at-ms": str(seen.at_ms)}
    return Response(seen.value.json, media_type="application/json", headers=headers)


def _json(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Encode a response in ASCII, which can hold lone surrogates too."""
    return Response(json.dumps(document), status, headers, "application/json")


def _told(answer: Answer) -> Answer:
    """Return `answer` with errors as JSON."""

    async def told(request: Request) -> Response:
        try:
            return await answer(request)
        except HTTPException as error:
            message = "not found" if error.status_code == 404 else error.detail
            return _json({"error": "Refused", "message": message}, error.status_code)
        except LithifyError as error:
            status = (
                503 if isinstance(error, StoreUnavailable) else 409 if isinstance(error, Refused) else 500
            )
            document = {"error": type(error).__name__, "message": concealed(str(error))}
            return _json(document, status)

    return told


async def _nothing(request: Request) -> Response:
    raise HTTPException(404)


def description(*, has_fleet: bool) -> dict[str, Any]:
    """Return the OpenAPI description."""
    paths: dict[str, Any] = {
        "/api/datasets": _get("One page of the datasets", _LIST_PARAMETERS),
        **{
            f"/api/datasets/{{id}}/{name}": _get(f"The output of `lithify {name} --json`", [_ID])
            for name in PARTS
        },
        **{
            f"/api/datasets/{{id}}/{name}": _post(action.consequence, name != "submit")
            for name, action in ACTIONS.items()
        },
    }
    if has_fleet:
        name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        paths |= {
            "/api/fleet": _get("The output of `lithify fleet status --json`", []),
            "/api/fleet/datasets": _get("The output of `lithify fleet list --json`", []),
            "/api/queues/{name}": _get("The output of `lithify queue info --json`", [name]),
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Lithify", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error", "message"],
                    "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
                }
            },
        },
    }


_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The dataset's id, as in /api/datasets",
    "schema": {"type": "string"},
}
_LIST_PARAMETERS = [
    {
        "name": "q",
        "in": "query",
        "description": "Only datasets whose URL contains this text",
        "schema": {"type": "string"},
    },
    {
        "name": "state",
        "in": "query",
        "description": "Only datasets of this level; `attention`: all with a concern",
        "schema": {"type": "string", "enum": [*map(str, DatasetLevel), ATTENTION]},
    },
    {"name": "kind", "in": "query", "schema": {"type": "string", "enum": list(KINDS)}},
    {"name": "tenant", "in": "query", "schema": {"type": "string"}},
    {"name": "sort", "in": "query", "schema": {"type": "string", "enum": [name for name in SORTS if name]}},
    {"name": "page", "in": "query", "schema": {"type": "integer", "minimum": 1}},
]
_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}


def _get(summary: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {"get": {"summary": summary, "parameters": parameters, "responses": _responses()}}


def _post(summary: str, needs_ids: bool) -> dict[str, Any]:
    ids = {"compactions": {"type": "array", "items": {"type": "string"}}}
    schema = (
        {"type": "object", "properties": ids, "required": ["compactions"]}
        if needs_ids
        else {"type": "object"}
    )
    body = {"required": needs_ids, "content": {"application/json": {"schema": schema}}}
    return {"post": {"summary": summary, "parameters": [_ID], "requestBody": body, "responses": _responses()}}


def _responses() -> dict[str, Any]:
    done = {"description": "Done", "content": {"application/json": {"schema": {"type": "object"}}}}
    return {"200": done, "default": {"description": "Not done", "content": _ERROR}}
