"""Who may not ask, and who means harm, gets nothing and does nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import lithify
from lithify.base.errors import Refused, StoreError
from lithify.observe.secrets import conceal
from lithify.web import serving
from lithify.web.guard import COOKIE, MAX_BODY_BYTES
from lithify.web.rendering import clean
from tests.cli.invoking import invoke, invoke_json
from tests.compacting import dataset_at
from tests.judge.official import Put, open_db
from tests.ledgers import take_epoch
from tests.web.dashboards import BEARER, ORIGIN, TOKEN, page_of, read, shown, write_database


@pytest.fixture
def database(tmp_path: Path) -> str:
    return write_database(tmp_path / "db")


# Who may ask


def test_without_the_token_there_is_nothing(database: str) -> None:
    paths = ["/", page_of(database), page_of(database, "plan"), "/datasets?q=x"]
    with shown([database], token=TOKEN) as client:
        for path in paths:
            answer = client.get(path)
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/login?to=")
            assert database not in answer.text
        for path in (
            "/api/datasets",
            "/api/openapi.json",
            "/events?of=/",
            f"/api{page_of(database, 'status')}",
        ):
            assert client.get(path).status_code == 401, path
        for wrong in (
            "Bearer x",
            f"Bearer {TOKEN}x",
            f"Basic {TOKEN}",
            "Bearer",
            "Bearer é",
            f"bearer{TOKEN}",
        ):
            given = {b"authorization": wrong.encode()}
            assert client.get("/api/datasets", headers=given).status_code == 401, wrong
        for cookie in (TOKEN, "", "x" * 64, "é"):
            given = {b"cookie": f"{COOKIE}={cookie}".encode()}
            assert client.get("/api/datasets", headers=given).status_code == 401, cookie
        assert client.get("/api/datasets", headers=BEARER).status_code == 200


def test_the_token_gives_a_cookie_that_does_not_tell_it(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.web.app.WRONG_TOKEN_S", 0.0)
    with shown([database], token=TOKEN) as client:
        wrong = client.post("/login", data={"token": "x", "to": "/"}, headers=ORIGIN)
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
        right = client.post("/login", data={"token": TOKEN, "to": page_of(database)}, headers=ORIGIN)
        assert (right.status_code, right.headers["location"]) == (303, page_of(database))
        cookie = right.headers["set-cookie"]
        assert TOKEN not in cookie
        assert "HttpOnly" in cookie
        assert "samesite=lax" in cookie.lower()
        assert client.get("/").status_code == 200, "the client keeps it"


@pytest.mark.parametrize(
    "to", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)", ""]
)
def test_logging_in_leads_nowhere_else(to: str) -> None:
    with shown([], token=TOKEN) as client:
        answer = client.post("/login", data={"token": TOKEN, "to": to}, headers=ORIGIN)
        assert answer.headers["location"] == "/"


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "", "evil.example:8090", "a b", "[::1"]
)
def test_another_name_is_refused(database: str, host: str) -> None:
    with shown([database]) as client:
        answer = client.get("/", headers={"host": host})
        assert answer.status_code == 421
        assert database not in answer.text


@pytest.mark.parametrize("host", ["localhost", "localhost:8090", "127.0.0.1:8090", "[::1]:8090", "10.1.2.3"])
def test_own_names_and_addresses_pass(database: str, host: str) -> None:
    with shown([database]) as client:
        assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost:1", "http://localhost.evil.example", "http://["],
)
def test_another_origin_does_nothing(database: str, origin: str) -> None:
    with shown([database], token=TOKEN) as client:
        for headers in ({**BEARER, "origin": origin}, {**BEARER, **ORIGIN, "sec-fetch-site": "cross-site"}):
            for path in (page_of(database, "submit"), f"/api{page_of(database, 'submit')}"):
                assert client.post(path, json={}, headers=headers).status_code == 403
        assert client.get("/api/datasets", headers={**BEARER, "origin": origin}).status_code == 403
    assert invoke_json("status", database)["compactions"] == []


def test_a_form_without_its_secret_or_its_origin_does_nothing(database: str) -> None:
    path = page_of(database, "submit")
    with shown([database], token=TOKEN) as client:
        for fields, headers in (
            ({}, ORIGIN),
            ({"csrf": "x"}, ORIGIN),
            ({"csrf": TOKEN}, ORIGIN),
            ({"csrf": "x"}, {}),
        ):
            assert client.post(path, data=fields, headers={**BEARER, **headers}).status_code == 403
        assert client.get(path, headers=BEARER).status_code == 405
        assert client.get(f"/api{path}", headers=BEARER).status_code in (404, 405)
    assert invoke_json("status", database)["compactions"] == []


def test_without_a_token_nothing_is_done(database: str) -> None:
    with shown([database]) as client:
        assert client.post(f"/api{page_of(database, 'submit')}", json={}).status_code == 403
        assert client.post(page_of(database, "submit"), data={"csrf": ""}, headers=ORIGIN).status_code == 403
        assert client.get(page_of(database, "confirm") + "?do=submit").status_code == 403
        assert "Compact everything" not in client.get(page_of(database)).text
    assert invoke_json("status", database)["compactions"] == []


# What is shown


def test_browsers_are_told_to_allow_nothing_else(database: str) -> None:
    with shown([database], token=TOKEN) as client:
        for path in ("/", "/login", "/static/lithify.js", "/nothing", "/api/datasets"):
            headers = client.get(path, headers=BEARER).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "same-origin"
            assert "server" not in headers
        assert client.get("/", headers=BEARER).headers["cache-control"] == "no-store"


MARKUP = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def test_names_with_markup_are_shown_as_text(tmp_path: Path) -> None:
    """In a dataset's URL, in errors, in a search, in a path, and in a queue's name."""
    url = f"s3://bucket/{MARKUP}"

    def away(wanted: str) -> lithify.api.client.Dataset:
        raise StoreError(f"{wanted} is away")

    fleet = lithify.Fleet(str(tmp_path / "fleet"))
    fleet.init()
    paths = [
        "/",
        f"/datasets?q={MARKUP}",
        page_of(url),
        page_of(url, "plan"),
        f"/datasets/{MARKUP}",
        f"/queues/{MARKUP}",
        f"/login?to={MARKUP}",
        f"/?done={MARKUP}",
    ]
    with shown([url], open_dataset=away, fleet=fleet) as client:
        for path in paths:
            answer = client.get(path)
            names = {name for name, _ in read(answer.text).tags}
            assert "img" not in names, path
            assert "<script>" not in answer.text, path
        assert MARKUP in read(client.get("/").text).text


def test_keys_with_markup_are_shown_as_text(tmp_path: Path) -> None:
    with open_db(tmp_path / "db") as database:
        for _ in range(2):
            database.write_batch([Put(b"<script>", b"v"), Put(b"<zz onload=x>]]>", b"v")])
            database.flush()
    take_epoch(dataset_at(tmp_path / "db"))
    with shown([str(tmp_path / "db")]) as client:
        html = client.get(page_of(str(tmp_path / "db"))).text
    assert "&lt;script&gt;" in html
    assert "<script>" not in html.replace('<script defer src="/static/', "")


def test_no_secret_is_on_any_page(tmp_path: Path) -> None:
    conceal(["sw0rdfish-known"])
    url = "https://user:hunter2hunter2@store.example/db"

    def away(wanted: str) -> lithify.api.client.Dataset:
        raise StoreError(f"{wanted}: aws_secret_access_key=AKIASECRETVALUE sw0rdfish-known")

    with shown([url], open_dataset=away, token=TOKEN) as client:
        for path in (
            "/",
            page_of(url),
            page_of(url, "plan"),
            "/api/datasets",
            f"/api{page_of(url, 'status')}",
        ):
            text = client.get(path, headers=BEARER).text
            for secret in ("hunter2hunter2", "AKIASECRETVALUE", "sw0rdfish-known", TOKEN):
                assert secret not in text, path
    assert clean({"settings": {"store_options.aws_secret_access_key": "x1"}}) == {
        "settings": {"store_options.aws_secret_access_key": "********"}
    }


# Too much


def test_a_body_that_is_too_long_is_refused(database: str) -> None:
    with shown([database], token=TOKEN) as client:
        headers = {**BEARER, "content-type": "application/json"}
        body = json.dumps({"compactions": ["x" * MAX_BODY_BYTES]})
        answer = client.post(f"/api{page_of(database, 'cancel')}", content=body, headers=headers)
        assert (answer.status_code, "too long" in answer.text) == (413, True)


def test_too_many_ids_are_refused(database: str) -> None:
    with shown([database], token=TOKEN) as client:
        ids = {"compactions": ["x"] * 101}
        answer = client.post(f"/api{page_of(database, 'cancel')}", json=ids, headers=BEARER)
        assert (answer.status_code, "at most 100" in answer.json()["message"]) == (409, True)


# What is refused from the start


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["web.host=0.0.0.0"], "set web.token"),
        (["web.token=short"], "too short"),
        (["web.host=no.such.host.invalid", f"web.token={TOKEN}"], "cannot listen"),
    ],
)
def test_what_cannot_be_protected_is_not_served(database: str, sets: list[str], says: str) -> None:
    given = [word for text in sets for word in ("--set", text)]
    result = invoke("web", *given, database)
    assert result.exit_code == Refused.exit_code
    assert says in " ".join(result.stderr.split())
    assert TOKEN not in result.stderr


def test_a_port_that_is_none_is_called_by_the_option_that_was_given(database: str) -> None:
    result = invoke("web", "--port", "99999", database)
    assert (result.exit_code, "(from --port)" in result.stderr) == (2, True), result.stderr


def test_nothing_to_show_is_refused() -> None:
    result = invoke("web")
    assert (result.exit_code, "--fleet" in result.stderr) == (2, True)


def test_without_the_libraries_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(Refused, match=r"lithify\[web\]"):
        serving.check(lithify.api.client.settled(None))
