"""The dashboard's application: pages, JSON under `/api`, actions and events, behind the guard.

| path                              | shows                                                          |
|-----------------------------------|----------------------------------------------------------------|
| `/`, `/datasets?q=…&page=…`       | all datasets: state, backlog, stall, last commit, failures      |
| `/datasets/ID`                    | one dataset: its status, its shape as a picture                 |
| `/datasets/ID/running`            | a bar for each range, rate, time left, worker                   |
| `/datasets/ID/plan`, `history`, `failures` | proposals and reasons; commits; failed compactions     |
| `/datasets/ID/confirm?do=…`       | asks before an action                                           |
| `/datasets/ID/retry`, `cancel`, `submit` | does the action (POST)                                   |
| `/fleet`, `/queues/NAME`          | members and queues of a fleet; the tasks that wait in a queue   |
| `/events?of=…`                    | sends an event when the page at that path is out of date        |

`lithify.web.api` has the same facts and actions as JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from lithify import __version__
from lithify.base.errors import LithifyError
from lithify.observe.secrets import concealed
from lithify.web.actions import ACTIONS, act
from lithify.web.api import api_routes
from lithify.web.dashboard import PER_PAGE, TABS, Dashboard, PageRequest, asked_of_list, id_of, version_of
from lithify.web.facts import Rendered, StatusFacts
from lithify.web.guard import COOKIE, COOKIE_S, Guard, is_same, sealed
from lithify.web.readers import CachedPart
from lithify.web.rendering import draw_bars, render

WRONG_TOKEN_S = 1.0
SHOWN_COMPACTIONS = 50
MAX_FIELDS = 20
Page = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class _Line:
    id: str
    url: str
    tenant: str | None
    summary: Any
    error: str
    read_at_ms: int
    last_ms: int | None


class Pages:
    """The handlers of requests for pages and actions."""

    def __init__(self, dashboard: Dashboard, token: str, streams: Streams) -> None:
        self._dashboard = dashboard
        self._token = token
        self._streams = streams

    def routes(self) -> list[Route | Mount]:
        one = "/datasets/{id:str}"
        pages: list[tuple[str, Page]] = [("/", self.overview), ("/datasets", self.overview)]
        pages += [(f"{one}/{tab}" if tab else one, self.dataset) for tab in TABS]
        pages += [(f"{one}/confirm", self.confirm), ("/login", self.show_login), ("/events", self.events)]
        if self._dashboard.fleet is not None:
            pages += [("/fleet", self.fleet), ("/queues/{name:str}", self.queue)]
        static = StaticFiles(directory=str(files("lithify.web") / "static"))
        return [
            *(Route(path, page, methods=["GET"]) for path, page in pages),
            *(Route(f"{one}/{action}", self.act, methods=["POST"]) for action in ACTIONS),
            Route("/login", self.log_in, methods=["POST"]),
            *api_routes(self._dashboard),
            Mount("/static", static),
        ]

    async def overview(self, request: Request) -> Response:
        """Show a page of the list."""
        query, number = asked_of_list({name: [text] for name, text in request.query_params.items()})
        listed = await self._dashboard.listed(query, number)
        seen = await self._dashboard.look(self._dashboard.wanted_of_list(listed))
        states, lasts = seen[: len(listed.urls)], seen[len(listed.urls) :]
        lines = []
        for url, state, last in zip(listed.urls, states, lasts, strict=True):
            rule = listed.rules.get(url)
            found = _facts(state)
            lines.append(
                _Line(
                    id_of(url),
                    url,
                    None if rule is None else rule.tenant_of(url),
                    None if found is None else found.summary,
                    "" if state is None else state.error,
                    0 if state is None else state.at_ms,
                    last.value.at_ms if last is not None and last.value is not None else None,
                )
            )
        return self._page(
            request,
            "overview.html",
            seen,
            heading="Datasets",
            json_path="/api/datasets" + (f"?{request.url.query}" if request.url.query else ""),
            lines=lines,
            query=query,
            problem=listed.problem,
            total=listed.total,
            first=(listed.page - 1) * PER_PAGE + 1,
            page=listed.page,
            pages=listed.pages,
            page_path=lambda page: "/datasets?" + urlencode({"q": query, "page": page}),
        )

    async def dataset(self, request: Request) -> Response:
        url = await self._url(request)
        base = f"/datasets/{request.path_params['id']}"
        tab = request.url.path.removeprefix(base).strip("/")
        seen = await self._dashboard.look(self._dashboard.wanted_of_dataset(url, tab))
        first = seen[0]
        shown = first.value if first is not None else None
        facts = shown.facts if isinstance(shown, Rendered) else None
        second = seen[1].value if len(seen) > 1 and seen[1] is not None else None
        given: dict[str, Any] = {
            "dataset": {"status_html": shown and shown.html, "plan_html": second.facts if second else None},
            "running": {"bars": draw_bars, "shown_most": SHOWN_COMPACTIONS},
            "plan": {"plan_html": shown and shown.html},
            "history": {"history_html": shown and shown.html},
            "failures": {},
        }[tab or "dataset"]
        if isinstance(facts, StatusFacts):
            given |= {"found": facts.status, "s": facts.summary}
        return self._page(
            request,
            f"{tab or 'dataset'}.html",
            seen,
            url=url,
            base=base,
            json_path=f"/api{base}/{tab if tab in ('plan', 'history') else 'status'}",
            tab=TABS[tab][0],
            tabs=[(name, f"{base}/{end}" if end else base) for end, (name, _) in TABS.items()],
            is_known=shown is not None,
            error="; ".join(s.error for s in seen if s is not None and s.error),
            actions=bool(self._token),
            **given,
        )

    async def fleet(self, request: Request) -> Response:
        (seen,) = await self._dashboard.look(self._dashboard.wanted_of_fleet())
        shown = None if seen is None else seen.value
        return self._page(
            request,
            "fleet.html",
            [seen],
            heading="Fleet",
            json_path="/api/fleet",
            html=None if shown is None else shown.html,
            queues=[] if shown is None else list(shown.facts.queues),
            error="" if seen is None else seen.error,
        )

    async def queue(self, request: Request) -> Response:
        """Show a queue and the tasks that wait in it."""
        (seen,) = await self._dashboard.look(self._dashboard.wanted_of_fleet())
        shown, name = (None if seen is None else seen.value), request.path_params["name"]
        if shown is not None and name not in shown.facts.queues:
            raise HTTPException(404)
        return self._page(
            request,
            "fleet.html",
            [seen],
            heading=f"Queue {name}",
            json_path=f"/api/queues/{quote(name)}",
            html=None if shown is None else shown.facts.queues[name].html,
            queues=[],
            error="" if seen is None else seen.error,
        )

    async def events(self, request: Request) -> Response:
        """Stream an event when the page at `of` is out of date."""
        address = request.query_params.get("of", "")
        wanted = await self._dashboard.wanted_at(address)
        if wanted is None:
            raise HTTPException(404)
        return self._streams.answer(address, wanted, request.query_params.get("seen", ""))

    # Actions

    async def confirm(self, request: Request) -> Response:
        url, action = await self._url(request), request.query_params.get("do", "")
        self._check_may_act()
        if action not in ACTIONS:
            raise HTTPException(404)
        return self._page(
            request,
            "confirm.html",
            None,
            url=url,
            base=f"/datasets/{request.path_params['id']}",
            action=action,
            heading=ACTIONS[action].question,
            consequence=ACTIONS[action].consequence,
            compaction=request.query_params.get("compaction", ""),
            csrf=sealed(self._token, "form"),
        )

    async def act(self, request: Request) -> Response:
        """Do the action, and redirect to the page that shows its result."""
        self._check_may_act()
        given = await _form(request)
        if not is_same(given.get("csrf", ""), sealed(self._token, "form")):
            raise HTTPException(
                403, "This form is from another server, or older than the server's token; reload the page."
            )
        url = await self._url(request)
        base = f"/datasets/{request.path_params['id']}"
        action = request.url.path.rpartition("/")[2]
        ids = [given["compaction"]] if given.get("compaction") else []
        try:
            await act(self._dashboard.source(url), action, ids)
        except LithifyError as error:
            return self._message(request, "The action was refused", str(error), base, 409)
        return RedirectResponse(f"{base}/{ACTIONS[action].shown_on}?done={action}", 303)

    def _check_may_act(self) -> None:
        if not self._token:
            raise HTTPException(403, "Actions need a token; set web.token.")

    async def show_login(self, request: Request) -> Response:
        return self._login(request, request.query_params.get("to", "/"))

    async def log_in(self, request: Request) -> Response:
        """Set the cookie if the token is right, else answer after `WRONG_TOKEN_S`."""
        given = await _form(request)
        to = given.get("to", "/")
        if not self._token or not is_same(given.get("token", ""), self._token):
            await asyncio.sleep(WRONG_TOKEN_S)
            return self._login(request, to, is_wrong=True)
        is_own = to.startswith("/") and not to.startswith(("//", "/\\"))
        answer = RedirectResponse(to if is_own else "/", 303)
        answer.set_cookie(
            COOKIE,
            sealed(self._token, "cookie"),
            max_age=COOKIE_S,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
        )
        return answer

    def _login(self, request: Request, to: str, *, is_wrong: bool = False) -> Response:
        status = 401 if is_wrong else 200
        return self._page(request, "login.html", None, status=status, to=to, is_wrong=is_wrong, areas=[])

    # Answers

    async def _url(self, request: Request) -> str:
        url = await self._dashboard.url_of(request.path_params["id"])
        if url is None:
            raise HTTPException(404)
        return url

    def _page(
        self,
        request: Request,
        template: str,
        seen: list[CachedPart | None] | None,
        *,
        status: int = 200,
        json_path: str = "/api/datasets",
        **given: Any,
    ) -> Response:
        """Render a page. With `seen`, the parts it shows, the page is kept up to date."""
        asked = [(name, text) for name, text in request.query_params.multi_items() if name != "done"]
        address = request.url.path + (f"?{urlencode(asked)}" if asked else "")
        done = request.query_params.get("done", "")
        areas = [("Datasets", "/")] + ([("Fleet", "/fleet")] if self._dashboard.fleet is not None else [])
        common: dict[str, Any] = {
            "version": __version__,
            "areas": areas,
            "here": request.url.path,
            "self_path": address,
            "events": None
            if seen is None
            else "/events?" + urlencode({"of": address, "seen": version_of(seen)}),
            "read_at": min((s.at_ms for s in seen if s is not None and s.at_ms), default=None)
            if seen
            else None,
            "now_ms": self._dashboard.clock.now_ms(),
            "done": ACTIONS[done].done if done in ACTIONS else "",
            "json_path": json_path,
        }
        return HTMLResponse(render(template, **{**common, **given}), status)

    def _message(self, request: Request, heading: str, message: str, back: str, status: int) -> Response:
        return self._page(
            request,
            "message.html",
            None,
            status=status,
            heading=heading,
            message=concealed(message),
            back=back,
        )

    async def failed(self, request: Request, error: Exception) -> Response:
        """Show an HTTP error as a page."""
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return self._message(request, "Not found", "This page does not exist.", "/", 404)
        return self._message(request, "Not done", error.detail, "/", error.status_code)


def _facts(seen: CachedPart | None) -> StatusFacts | None:
    shown = None if seen is None else seen.value
    return shown.facts if isinstance(shown, Rendered) and isinstance(shown.facts, StatusFacts) else None


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form, with invalid UTF-8 replaced. 400 for more than `MAX_FIELDS`."""
    body = (await request.body()).decode("utf-8", "replace")
    try:
        found = parse_qs(body, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise HTTPException(400, f"A form has at most {MAX_FIELDS} fields.") from None
    return {name: texts[0] for name, texts in found.items()}


def application(
    dashboard: Dashboard, token: str = "", names: Iterable[str] = (), *, streams: Streams | None = None
) -> Guard:
    pages = Pages(dashboard, token, streams if streams is not None else Streams(dashboard))
    app = Starlette(routes=pages.routes(), exception_handlers={HTTPException: pages.failed})
    return Guard(app, token, names)


INTERVAL_S = 2.0
ALIVE_S = 15.0
"""The longest silence of a stream: sending detects clients that have disconnected."""
LIFE_S = 600.0
MAX_STREAMS = 64


class Streams:
    """Server-sent events for open pages: "your content has changed, load it again".

    1. Every `INTERVAL_S` a stream reads its page's parts from the cache that all pages share, so it costs no
       requests of its own. It sends an event only if the version differs.
    2. At most `MAX_STREAMS` are open; for further ones the page stays as it is until it is reloaded. A stream
       ends after `LIFE_S`, and its page opens another.
    3. The guard drops a client that accepts nothing.
    """

    def __init__(
        self, dashboard: Dashboard, *, most: int = MAX_STREAMS, interval_s: float = INTERVAL_S
    ) -> None:
        self._dashboard = dashboard
        self._most = most
        self._interval_s = interval_s
        self.open = 0

    def answer(self, address: str, wanted: PageRequest, seen: str) -> Response:
        """Return a stream for the page at `address` that shows version `seen`; 503 if too many are open."""
        if self.open >= self._most:
            message = f"{self._most} pages are already kept up to date; reload this one\n"
            return PlainTextResponse(message, 503, {"retry-after": "30"})
        self.open += 1
        return _Counted(self, self._events(address, wanted, seen))

    async def _events(self, address: str, wanted: PageRequest | None, seen: str) -> AsyncIterator[str]:
        clock = self._dashboard.clock
        began_s = sent_s = clock.monotonic_s()
        yield "retry: 5000\n\n"
        while wanted is not None and clock.monotonic_s() - began_s < LIFE_S:
            version = version_of(await self._dashboard.look(wanted))
            if version != seen:
                yield f"event: changed\ndata: {version}\n\n"
                seen, sent_s = version, clock.monotonic_s()
            elif clock.monotonic_s() - sent_s > ALIVE_S:
                yield ": alive\n\n"
                sent_s = clock.monotonic_s()
            await asyncio.sleep(self._interval_s)
            wanted = await self._dashboard.wanted_at(address)


class _Counted(StreamingResponse):
    """A stream that is counted until it ends, in whatever way."""

    def __init__(self, streams: Streams, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1
