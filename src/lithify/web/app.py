"""The dashboard's application: pages, JSON under `/api`, actions and events, behind the guard.

| path                              | shows                                                          |
|-----------------------------------|----------------------------------------------------------------|
| `/`                               | figures of all datasets, what needs attention, the first page   |
| `/datasets?state=…&sort=…`        | the datasets that match: level, backlog, stall, last commit     |
| `/datasets/ID`                    | one dataset: verdict, reasons, advice, status, shape            |
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
from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from lithify import __version__
from lithify.base.errors import LithifyError
from lithify.fleet.checks import check_fleet
from lithify.observe.secrets import concealed
from lithify.protocol.finding import Finding, Severity
from lithify.protocol.status import Status
from lithify.web.actions import ACTIONS, act
from lithify.web.api import api_routes
from lithify.web.bars import draw_bars
from lithify.web.dashboard import (
    KINDS,
    PER_PAGE,
    SORTS,
    TABS,
    Dashboard,
    ListQuery,
    PageRequest,
    asked_of_list,
)
from lithify.web.facts import Rendered, figures_of, pace_of, summary_of
from lithify.web.guard import COOKIE, COOKIE_S, Guard, is_same, sealed
from lithify.web.readers import CachedPart
from lithify.web.rendering import render
from lithify.web.streams import Streams
from lithify.web.verdicts import DatasetLevel, advice, outlook

WRONG_TOKEN_S = 1.0
SHOWN_COMPACTIONS = 50
SHOWN_CONCERNS = 10
MAX_FIELDS = 20
Page = Callable[[Request], Awaitable[Response]]


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
        """Show a page of the list; at `/` with all that needs attention."""
        query = asked_of_list({name: [text] for name, text in request.query_params.items()})
        listed = await self._dashboard.listed(query)
        wanted = self._dashboard.wanted_of_list(listed)
        seen = await self._dashboard.look(wanted)
        listed = self._dashboard.refreshed(listed)
        is_home = request.url.path == "/"
        return self._page(
            request,
            "overview.html",
            wanted,
            seen,
            heading="Datasets",
            json_path="/api/datasets" + (f"?{request.url.query}" if request.url.query else ""),
            listed=listed,
            attention=listed.attention if is_home else [],
            findings=self._findings() if is_home else [],
            shown_most=SHOWN_CONCERNS,
            query=query,
            levels=DatasetLevel,
            kinds=KINDS,
            sorts=SORTS,
            tenants=sorted({one.tenant for one in listed.everything if one.tenant}),
            first=(listed.page - 1) * PER_PAGE + 1,
        )

    def _findings(self) -> list[Finding]:
        """Return what an operator should know of the fleet, problems first."""
        facts, problems, rules = self._dashboard.fleet_facts()
        if facts is None:
            return []
        found = [f for f in check_fleet(facts.status, rules, problems) if f.severity is not Severity.OK]
        return sorted(found, key=lambda finding: finding.severity is not Severity.PROBLEM)

    async def dataset(self, request: Request) -> Response:
        url = await self._url(request)
        base = f"/datasets/{request.path_params['id']}"
        tab = request.url.path.removeprefix(base).strip("/")
        wanted = self._dashboard.wanted_of_dataset(url, tab)
        seen = await self._dashboard.look(wanted)
        first, known = seen[0], self._dashboard.known(url)
        shown = first.value if first is not None else None
        facts = shown.facts if isinstance(shown, Rendered) else None
        second = seen[1].value if len(seen) > 1 and seen[1] is not None else None
        of_tab: dict[str, dict[str, Any]] = {
            "dataset": {"status_html": shown and shown.html, "plan_html": second.facts if second else None},
            "running": {"bars": draw_bars, "shown_most": SHOWN_COMPACTIONS},
            "plan": {"plan_html": shown and shown.html},
            "history": {"history_html": shown and shown.html, "totals": facts},
            "failures": {"advice": advice},
        }
        given = of_tab[tab or "dataset"]
        if isinstance(facts, Status):
            summary = known.summary or summary_of(url, facts)
            given |= {"found": facts, "s": summary, "outlook": outlook(facts, pace_of(known.last))}
        return self._page(
            request,
            f"{tab or 'dataset'}.html",
            wanted,
            seen,
            known=known,
            url=url,
            base=base,
            json_path=f"/api{base}/{tab if tab in ('plan', 'history') else 'status'}",
            tab=TABS[tab][0],
            tabs=[(name, f"{base}/{end}" if end else base) for end, (name, _) in TABS.items()],
            is_known=shown is not None,
            error="; ".join(dict.fromkeys(s.error for s in seen if s is not None and s.error)),
            actions=bool(self._token),
            **given,
        )

    async def fleet(self, request: Request) -> Response:
        wanted = self._dashboard.wanted_of_fleet()
        (seen,) = await self._dashboard.look(wanted)
        shown = None if seen is None else seen.value
        listed = await self._dashboard.listed(ListQuery())
        return self._page(
            request,
            "fleet.html",
            wanted,
            [seen],
            heading="Fleet",
            json_path="/api/fleet",
            html=None if shown is None else shown.html,
            figures=None if shown is None else figures_of(shown.facts.status),
            findings=self._findings(),
            failing=listed.failing_tenants(),
            list_path=ListQuery().path,
            queues=[] if shown is None else list(shown.facts.queues),
            error="" if seen is None else seen.error,
        )

    async def queue(self, request: Request) -> Response:
        """Show a queue and the tasks that wait in it."""
        wanted = self._dashboard.wanted_of_fleet()
        (seen,) = await self._dashboard.look(wanted)
        shown, name = (None if seen is None else seen.value), request.path_params["name"]
        if shown is not None and name not in shown.facts.queues:
            raise HTTPException(404)
        return self._page(
            request,
            "fleet.html",
            wanted,
            [seen],
            heading=f"Queue {name}",
            json_path=f"/api/queues/{quote(name)}",
            html=None if shown is None else shown.facts.queues[name].html,
            figures=None,
            findings=[],
            failing=[],
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
        return self._page(request, "login.html", status=status, to=to, is_wrong=is_wrong, areas=[])

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
        wanted: PageRequest | None = None,
        seen: Sequence[CachedPart | None] = (),
        *,
        status: int = 200,
        json_path: str = "/api/datasets",
        **given: Any,
    ) -> Response:
        """Render a page. If it is of `wanted` parts, it is kept up to date; `seen` are their values."""
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
            if wanted is None
            else "/events?" + urlencode({"of": address, "seen": self._dashboard.version(wanted, seen)}),
            "read_at": min((s.at_ms for s in seen if s is not None and s.at_ms), default=None),
            "now_ms": self._dashboard.clock.now_ms(),
            "done": ACTIONS[done].done if done in ACTIONS else "",
            "json_path": json_path,
        }
        return HTMLResponse(render(template, **{**common, **given}), status)

    def _message(self, request: Request, heading: str, message: str, back: str, status: int) -> Response:
        return self._page(
            request,
            "message.html",
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
