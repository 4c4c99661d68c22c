"""No secret is in what a command prints, logs, or leaves in the store or on the disk."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result

from lithify.observe.logs import FIELDS, LOGGER, set_up_logs
from lithify.protocol.finding import problem
from tests import serving
from tests.cli.invoking import invoke, logging_as_before
from tests.engine.waiting import child_environment
from tests.judge.official import Put, open_db
from tests.s3 import S3

CANARY = "hunter2-canary"
NOWHERE = f"http://user:{CANARY}@127.0.0.1:1"
QUICK = ["--store-option=max_retries=0"]
S3_KEYS = [
    "--store-option=aws_access_key_id=id",
    f"--store-option=aws_secret_access_key={CANARY}",
    "--store-option=aws_region=us-east-1",
]


def failed(*arguments: str | Path) -> Result:
    """Run a command that fails, with and without JSON; nothing may show the canary."""
    for more in ([], ["--json"]):
        result = invoke(*arguments, *more)
        assert result.exit_code
        assert result.stderr
        assert CANARY not in result.stdout + result.stderr
    return result


@pytest.mark.parametrize(
    "options",
    [
        [f"--store-option=aws_endpoint={NOWHERE}", *S3_KEYS],
        [f"--store-option=aws_endpoint={NOWHERE}", "--store-option=allow_http=false"],
        [f"--store-option=aws_endpoint=http://user:{CANARY}@["],
        [f"--store-option=aws_endpoint=http://127.0.0.1:1/?sig={CANARY}", *S3_KEYS],
        [f"--store-option=aws_secret_access_key_={CANARY}"],
        [f"--store-option=timeout=http://user:{CANARY}@host"],
        [f"--store-option=aws_server_side_encryption=sse-c --store-option=aws_sse_customer_key={CANARY}"],
        [f"--store-option=aws_secret_access_key {CANARY}"],
    ],
)
def test_a_database_that_cannot_be_reached(options: list[str]) -> None:
    failed("plan", "s3://bucket/db", *QUICK, *options)


@pytest.mark.parametrize(
    "variable", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "LITHIFY_STORE_OPTIONS__AWS_ENDPOINT"]
)
def test_an_endpoint_of_the_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, NOWHERE)
    shown = failed("plan", "s3://bucket/db", *QUICK, *S3_KEYS)
    assert "127.0.0.1:1" in shown.stderr  # the rest of the endpoint is needed to see what is wrong


@pytest.mark.parametrize("key", [CANARY, json.dumps({"private_key": CANARY}), json.dumps([CANARY])])
def test_a_key_that_does_not_fit(key: str) -> None:
    failed("plan", "gs://bucket/db", *QUICK, f"--store-option=google_service_account_key={key}")


@pytest.mark.parametrize("text", [f'["{CANARY}"]', f'{{ x = "{CANARY}" }}'])
def test_a_file_in_which_a_secret_has_the_wrong_form(tmp_path: Path, text: str) -> None:
    file = tmp_path / "lithify.toml"
    file.write_text(f"[store_options]\naws_secret_access_key = {text}")
    failed("plan", "s3://bucket/db", "--config", file)


@pytest.mark.parametrize(
    "options",
    [
        {"s3.secret-access-key": CANARY, "adls.account-key": CANARY},
        {"uri": f"postgresql+psycopg2://user:{CANARY}@127.0.0.1:1/catalog"},
        {"uri": f"nonsense://user:{CANARY}@host"},
        {"uri": NOWHERE, "type": "rest", "token": CANARY},
        {"uri": NOWHERE, "type": "rest", "credential": f"client:{CANARY}"},
    ],
)
def test_a_catalog_that_cannot_be_opened(options: dict[str, str]) -> None:
    wait = ["--set", "service.store_wait=1s"]
    failed("plan", "iceberg://nowhere/db.t", *wait, *(f"--store-option={k}={v}" for k, v in options.items()))


@pytest.fixture
def indiscreet() -> Iterator[str]:
    """A catalog that answers with the token it was sent."""

    class Handler(serving.Handler):
        def do_GET(self) -> None:
            said = f"the token {self.headers['Authorization'].split()[1]} has expired"
            data = json.dumps({"error": {"message": said, "type": "NotAuthorized", "code": 401}}).encode()
            self.send_response(401)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with serving.serving(Handler) as url:
        yield url


def test_a_message_of_others_that_shows_a_secret_we_know(indiscreet: str) -> None:
    options = [
        "--store-option=type=rest",
        f"--store-option=uri={indiscreet}",
        f"--store-option=token={CANARY}",
    ]
    assert "has expired" in failed("plan", "iceberg://nowhere/db.t", *options).stderr


def test_the_settings_that_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITHIFY_STORE_OPTIONS__AZURE_STORAGE_SAS_KEY", f"sig={CANARY}")
    given = [
        f"--set=spark.master=sc://host:15002/;token={CANARY}",
        f"--set=spark.conf.spark.hadoop.fs.azure.account.key.lake={CANARY}",
        f"--set=spark.conf.spark.driver.extraJavaOptions=-Dx.password={CANARY}",
        f"--store-option=aws_endpoint=http://user:{CANARY}@host:9000",
        f"--store-option=aws_secret_access_key={CANARY}",
        f"--store-option=google_service_account_key={json.dumps({'private_key': CANARY})}",
    ]
    for more in ([], ["--json"], ["--changed"]):
        shown = invoke("config", "show", *given, *more)
        assert shown.exit_code == 0
        assert CANARY not in shown.stdout + shown.stderr
        assert "@host:9000" in shown.stdout


@pytest.mark.parametrize("form", ["text", "json"])
def test_logs(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as_before():
        set_up_logs(form, "debug")
        log = logging.getLogger(LOGGER)
        fields = {
            "reason": f"GET {NOWHERE}",
            "more": {"token": f"token={CANARY}"},
            "path": Path(f"/x?sig={CANARY}"),
        }
        log.warning("failed at %s", NOWHERE, extra={FIELDS: fields})
        try:
            raise OSError(f"GET {NOWHERE}")
        except OSError:
            log.exception("and again")
    shown = capsys.readouterr().err
    assert "127.0.0.1" in shown
    assert "and again" in shown
    assert CANARY not in shown


def test_what_the_doctor_finds() -> None:
    assert CANARY not in problem("spark", f"Spark at sc://host/;token={CANARY} does not answer", "look").says


def test_a_compaction_leaves_no_secret_anywhere(s3: S3, tmp_path: Path) -> None:
    """What it prints, every object in the bucket, and its temporary folder."""
    bucket = s3.bucket()
    with open_db(f"s3://{bucket}/db", store_options=s3.options) as database:
        for batch in range(4):
            database.write_batch([Put(b"k%d" % n, b"%d" % batch) for n in range(10)])
            database.flush()
    options = s3.options | {"aws_secret_access_key": CANARY}
    del options["aws_allow_http"]
    command = [sys.executable, "-m", "lithify.cli.main", "--verbose", "compact", "--full", "--json"]
    command += ["--master=local[1]", f"--spark-conf=spark.hadoop.fs.s3a.secret.key={CANARY}"]
    (tmp_path / "lithify.toml").write_text(
        "\n".join(["[store_options]", *(f'{name} = "{value}"' for name, value in options.items())])
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    run = subprocess.run(
        [*command, f"--config={tmp_path / 'lithify.toml'}", f"s3://{bucket}/db"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env=child_environment() | {"TMPDIR": str(scratch)},
    )
    assert json.loads(run.stdout)["did_anything"]
    assert CANARY not in run.stdout + run.stderr
    client = s3.client()
    names = [found["Key"] for found in client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert len(names) > 5
    for name in names:
        assert CANARY.encode() not in client.get_object(Bucket=bucket, Key=name)["Body"].read()
    for path in (path for path in scratch.rglob("*") if path.is_file()):
        assert CANARY.encode() not in path.read_bytes()
