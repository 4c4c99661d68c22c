"""`lithify fleet` and `lithify queue`, and the same as calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.utils.config import Config

import lithify
from lithify.api import wiring
from lithify.config.model import Config as Settings
from lithify.fleet.catalog.model import DatasetRule, QueueState
from lithify.fleet.members import Amounts, FleetMember, FleetRole, Load, Running
from lithify.planning.fleet.task_offers import ClaimOffer
from tests.cli.invoking import invoke, invoke_json
from tests.cli.test_json import DATABASE, documented
from tests.datasets.iceberg.tables import new_catalog, new_table


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    """A new fleet."""
    url = str(tmp_path / "fleet")
    document = invoke_json("fleet", "init", url)
    assert [queue["name"] for queue in document["queues"]] == ["default"]
    return url


def test_queues_from_create_to_delete(fleet: str) -> None:
    small = invoke_json("queue", "create", "--largest", "1GB", "--reserved-slots", "2", fleet, "small")
    assert (small["name"], small["largest_bytes"], small["reserved_slots"]) == ("small", 10**9, 2)
    changed = invoke_json("queue", "set", "--weight", "3", "--largest", "2GiB", fleet, "small")
    assert changed == {**small, "weight": 3, "largest_bytes": 2 << 30}
    assert [q["name"] for q in invoke_json("queue", "list", fleet)["queues"]] == ["small", "default"]
    for command, state in (("pause", "paused"), ("resume", "active"), ("drain", "draining")):
        assert invoke_json("queue", command, fleet, "small")["state"] == state
        assert invoke_json("queue", "info", fleet, "small")["state"] == state
    assert invoke_json("queue", "delete", fleet, "small") == {"deleted": "small"}
    again = invoke_json("queue", "create", "--largest", "1GB", fleet, "small")
    assert again["id"] != small["id"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("fleet", "init"), "a fleet exists already"),
        (("queue", "info", "none"), "there is no queue 'none'"),
        (("queue", "delete", "default"), "takes the work that no other queue takes"),
        (("queue", "create", "--largest", "much", "x"), "is not a size"),
        (("queue", "set", "default"), "nothing to change was given"),
        (("fleet", "add", "--queue", "none", "/x"), "there is no queue 'none'"),
        (("fleet", "add", "--setting", "service.nothing=1", "/x"), "there is no setting service.nothing"),
        (("fleet", "add", "--coordinated-by", "me", "/x"), "must be one of fleet, owner"),
        (("fleet", "add", "what://x/y"), "the scheme 'what' is not known"),
        (("fleet", "remove", "/x"), "no rule has this pattern"),
        (("fleet", "wake", "/x"), "is not a dataset of this fleet"),
    ],
)
def test_what_is_refused_changes_nothing(fleet: str, arguments: tuple[str, ...], says: str) -> None:
    before = lithify.Fleet(fleet).catalog()
    names = 2 + 2 * sum(argument.startswith("--") for argument in arguments)
    result = invoke(*arguments[:names], fleet, *arguments[names:])
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())
    assert lithify.Fleet(fleet).catalog() == before


def test_tenants_are_set_shown_and_removed(fleet: str) -> None:
    assert invoke_json("fleet", "tenant", "list", fleet) == {"tenants": []}
    red = {"name": "red", "weight": 2, "most_running": 8}
    given = ("fleet", "tenant", "set", "--weight", "2", "--most-running", "8", fleet, "red")
    assert invoke_json(*given) == {"tenants": [red]}
    assert invoke_json("fleet", "list", fleet)["tenants"] == [red]
    assert "red" in invoke("fleet", "tenant", "list", fleet).stdout
    assert invoke_json("fleet", "tenant", "remove", fleet, "red") == {"tenants": []}
    for arguments, says in (
        (("remove", fleet, "red"), "has no weight or limit"),
        (("set", fleet, "red"), "nothing to change was given"),
        (("set", "--weight", "0", fleet, "red"), "weight is 0"),
    ):
        result = invoke("fleet", "tenant", *arguments)
        assert result.exit_code == 2
        assert says in " ".join(result.stderr.split())


def test_what_is_no_fleet_is_told(tmp_path: Path) -> None:
    for command in (("fleet", "status"), ("fleet", "list"), ("queue", "list")):
        result = invoke(*command, tmp_path)
        assert result.exit_code == 2
        assert "there is no fleet" in result.stderr
    assert not any(tmp_path.iterdir())


def test_datasets_are_added_found_and_removed(fleet: str, tmp_path: Path) -> None:
    for name in ("red/db", "blue/db", "blue/other", "green"):
        (tmp_path / "tenants" / name).mkdir(parents=True)
    pattern = str(tmp_path / "tenants" / "*" / "db")
    document = invoke_json(
        "fleet", "add", "--tenant", "*", "--setting", "service.max_attempts=2", fleet, pattern
    )
    found = {one["url"]: one["tenant"] for one in document["datasets"]}
    # Whether it is a database shows who opens it.
    assert found == {str(tmp_path / "tenants" / name / "db"): name for name in ("red", "blue", "green")}
    (rule,) = document["rules"]
    assert (rule["settings"], rule["datasets"]) == ({"service.max_attempts": "2"}, 3)
    (tmp_path / "tenants" / "grey" / "db").mkdir(parents=True)
    assert len(invoke_json("fleet", "list", fleet)["datasets"]) == 4
    assert invoke_json("fleet", "wake", fleet, tmp_path / "tenants" / "red" / "db")["woken"]
    assert invoke_json("fleet", "status", fleet)["wakes"] == 1
    assert invoke_json("fleet", "remove", fleet, pattern)["datasets"] == []


def test_tables_of_a_namespace_are_found(fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    catalog = new_catalog(tmp_path, name="lake")
    new_table(catalog)
    found, problems = _datasets(fleet, "iceberg://lake/db.*")
    assert (found, problems) == (["iceberg://lake/db.events"], {})
    assert _datasets(fleet, "iceberg://lake/*.ev*")[0] == ["iceberg://lake/db.events"]
    assert _datasets(fleet, "iceberg://lake/none.*")[0] == []


def _datasets(url: str, pattern: str) -> tuple[list[str], dict[str, Any]]:
    fleet = lithify.Fleet(url)
    for rule in fleet.catalog().catalog.rules:
        fleet.remove(rule.pattern)
    fleet.add(pattern)
    found, problems = fleet.datasets()
    return list(found), dict(problems)


def test_status_tells_members_and_what_waits(fleet: str) -> None:
    opened = lithify.Fleet(fleet)
    queue = opened.create_queue("small", largest_bytes=1_000)
    files = opened._files
    works = Load(slots=4, tenants={"red": Amounts(running=1)})
    keeps = Load(
        tenants={"red": Amounts(waiting=5, lowest_priority=0.2), None: Amounts(deferred=2, oldest_ms=7)}
    )
    worker = FleetMember("worker-1", FleetRole.WORKER, "host", "0.1.0", 2, load={queue.id: works})
    coordinator = FleetMember(
        "coordinator-1", FleetRole.COORDINATOR, "host", "0.1.0", 1, 12, {queue.id: keeps}, quarantined=3
    )
    files.members.beat(coordinator)
    assert opened.queue("small").is_unserved, "while nobody serves it nothing is admitted"
    assert "7, because no worker serves the queue" in invoke("queue", "info", fleet, "small").stdout
    hint = ClaimOffer("s3://b/db", "01ARZ3NDEKTSV4RRFFQ69G5FAV", 3, 0.5, 700, 1)
    files.boards.write(queue.id, coordinator.name, [hint])
    assert opened.queue("small").is_unserved
    files.members.beat(worker)
    status = opened.status()
    assert [member.says for member in status.members] == [coordinator, worker]
    small = opened.queue("small")
    assert (small.slots, small.running, small.waiting, small.deferred, small.workers) == (4, 1, 5, 2, 1)
    assert (small.hints, small.queued_bytes, small.is_unserved) == ((hint,), 700, False)
    shown = invoke("fleet", "status", fleet)
    assert "coordinator-1" in shown.stdout
    document = invoke_json("queue", "info", fleet, "small")
    assert document["hints"][0]["url"] == "s3://b/db"
    assert document["queued"] == 1
    assert (document["waiting"], document["deferred"], document["running"]) == (5, 2, 1)
    assert document["lowest_priority"] == 0.999 * 0.5 / 4, "the hint's: normal, halfway up"
    red, others = document["tenants"]
    assert (red["tenant"], red["waiting"], red["running"]) == ("red", 5, 1)
    assert (others["tenant"], others["deferred"], others["oldest_ms"]) == (None, 2, 7)
    assert "(others)" in shown.stdout
    told = invoke("queue", "info", fleet, "small").stdout
    assert "8, until a worker claims it, within seconds" in told
    assert "planned" in told
    files.boards.write(queue.id, coordinator.name, [replace(hint, band=0, attempts=2)])
    told = " ".join(invoke("queue", "info", fleet, "small").stdout.split())
    assert "its writer is near a stall; failed 2 times" in told
    files.members.beat(replace(worker, load={queue.id: replace(works, slots=1)}))
    assert "8, because all 1 slots are busy" in invoke("queue", "info", fleet, "small").stdout
    opened.pause_queue("small")
    assert "8, because the queue is paused" in invoke("queue", "info", fleet, "small").stdout
    assert not opened.queue("small").is_unserved


def test_workers_and_what_they_run(fleet: str) -> None:
    assert invoke_json("fleet", "workers", fleet) == {"workers": []}
    assert invoke_json("fleet", "running", fleet) == {"running": [], "problems": {}}
    opened = lithify.Fleet(fleet)
    queue_id = opened.catalog().catalog.queue("default").id
    load = {queue_id: Load(slots=4, bytes_per_s=9, tenants={"red": Amounts(running=1)})}
    runs = Running("s3://b/db", "01ARZ3NDEKTSV4RRFFQ69G5FAV", queue_id, 1_000, 700, "red")
    worker = FleetMember(
        "worker-1", FleetRole.WORKER, "host", "0.1.0", 1, load=load, running=(runs,), at_ms=5_000
    )
    opened._files.members.beat(worker)
    (shown,) = invoke_json("fleet", "workers", fleet)["workers"]
    assert (shown["name"], shown["is_alive"]) == ("worker-1", True)
    assert shown["queues"] == [{"queue": "default", "slots": 4, "running": 1, "bytes_per_s": 9}]
    (one,) = invoke_json("fleet", "running", fleet)["running"]
    assert one == {
        **{"url": "s3://b/db", "compaction": runs.compaction, "worker": "worker-1", "queue": "default"},
        **{"running_ms": 4_000, "bytes": 700, "tenant": "red"},
    }
    assert "worker-1" in invoke("fleet", "workers", fleet).stdout
    assert "s3://b/db" in invoke("fleet", "running", fleet).stdout
    assert invoke_json("fleet", "running", "--exact", fleet)["running"] == [], "no ledger says so"


def test_the_same_as_calls(tmp_path: Path) -> None:
    fleet = lithify.Fleet(str(tmp_path / "fleet"))
    with pytest.raises(lithify.DatasetNotFound):
        fleet.status()
    fleet.init()
    fleet.create_queue("small", largest_bytes=10, weight=2)
    assert fleet.pause_queue("small").state is QueueState.PAUSED
    assert fleet.resume_queue("small").state is QueueState.ACTIVE
    assert fleet.set_queue("small", largest_share=0.5).largest_share == 0.5
    fleet.delete_queue("small")
    with pytest.raises(lithify.Refused, match="no queue 'small'"):
        fleet.drain_queue("small")


def test_settings_of_a_rule_win_over_those_of_the_process(tmp_path: Path) -> None:
    base = Settings.model_validate({"service": {"max_attempts": 9, "poll_interval": "3s"}})
    rule = DatasetRule("/x", settings={"service.max_attempts": "2", "store_options.aws_region": "x"})
    found = wiring.config_of(rule, base, "/fleet")
    assert (found.service.max_attempts, found.service.poll_interval) == (2, base.service.poll_interval)
    assert found.store_options == {"aws_region": "x"}
    assert base.store_options == {}
    with pytest.raises(lithify.Refused, match="rule /x"):
        wiring.config_of(DatasetRule("/x", settings={"service.max_attempts": "no"}), base, "/fleet")


@pytest.mark.parametrize(
    "setting",
    [
        "spark.master=local[1]",
        "log.level=debug",
        "service.poll_interval=7s",
        "service.poll_interval=5s",
        "service.poll_interval_ms=7000",
        "service.worker.heartbeat_interval=2s",
        "service.embedded_worker=false",
    ],
)
def test_a_setting_that_is_not_of_datasets_is_refused(fleet: str, setting: str) -> None:
    """It could have no effect."""
    result = invoke("fleet", "add", "--setting", setting, fleet, "/data/*")
    assert result.exit_code == 2
    assert "is a setting of processes" in result.stderr
    assert lithify.Fleet(fleet).catalog().catalog.rules == ()


@pytest.mark.parametrize(
    ("pattern", "setting", "says"),
    [
        ("/data/*", "iceberg.properties.granularity=day", "of Iceberg tables, and the rule is for SlateDB"),
        ("iceberg://lake/db.*", "slatedb.block_size=4096", "of SlateDB databases, and the rule is for Ice"),
        ("kafka+s3://b/*", "slatedb.block_size=4096", "of SlateDB databases, and the rule is for keyed logs"),
        ("/data/*", "slatedb.block_size=4097", "a block size of 4097 bytes does not exist"),
        ("/data/*", "slatedb.compression_codec=rar", "unknown compression 'rar'"),
        ("/data/*", "slatedb.scheduler_options.min_compaction_sources=x", "is ignored: not a whole number"),
        ("/data/*", "slatedb.scheduler_options.min_sources=3", "there is no such option"),
        ("/data/*", "slatedb.segments.time_zone=Mars", "Mars"),
        ("/data/*", "slatedb.segments.pattern={u64:parsec}", "parsec"),
        ("iceberg://lake/db.*", "iceberg.properties.granularity=second", "granularity is 'second'"),
        ("iceberg://lake/db.*", "iceberg.properties.no-such=1", "lithify.no-such is unknown"),
        ("kafka+s3://b/*", "kafka.copy_to=a b", "is not a valid topic name"),
        ("kafka+s3://b/*", "kafka.member=a b", "is not a name"),
        ("kafka+s3://b/*", "kafka.broker_build=newest", "is not a version of the broker"),
    ],
)
def test_a_setting_that_could_do_nothing_for_the_datasets_of_a_rule_is_refused(
    fleet: str, pattern: str, setting: str, says: str
) -> None:
    result = invoke("fleet", "add", "--setting", setting, fleet, pattern)
    assert result.exit_code == 2
    told = " ".join(result.stderr.split())
    assert (f"rule {pattern}: " in told, says in told) == (True, True), told
    assert lithify.Fleet(fleet).catalog().catalog.rules == ()


def test_a_merge_operator_need_not_be_installed_where_a_rule_is_written(fleet: str) -> None:
    given = {"slatedb.merge_operator": "not.here:operator", "slatedb.compression_codec": "zstd"}
    listed = {"fleet.rules_may_set.slatedb.merge_operator": "not.here:operator"}
    assert len(lithify.Fleet(fleet, settings=listed).add("/data/*", settings=given).rules) == 1
    properties = {"iceberg.properties.granularity": "hour", "service.store_wait": "1m"}
    assert len(lithify.Fleet(fleet).add("iceberg://lake/db.*", settings=properties).rules) == 2


def test_documents_are_as_documented(fleet: str) -> None:
    said = {
        "fleet status": invoke_json("fleet", "status", fleet),
        "fleet list": invoke_json("fleet", "list", fleet),
        "fleet wake": {"woken": []},
        "fleet workers": invoke_json("fleet", "workers", fleet),
        "fleet running": invoke_json("fleet", "running", fleet),
        "fleet tenant list": invoke_json("fleet", "tenant", "list", fleet),
        "queue create": invoke_json("queue", "create", "--largest", "5", fleet, "a"),
        "queue info": invoke_json("queue", "info", fleet, "a"),
        "queue list": invoke_json("queue", "list", fleet),
        "queue delete": invoke_json("queue", "delete", fleet, "a"),
    }
    fields = documented()
    for name, document in said.items():
        assert list(document) == fields[name, DATABASE], name


# What nobody could read


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda fleet: fleet.create_queue("small", largest_bytes=1e9), "1000000000.0 is not a whole number"),
        (
            lambda fleet: fleet.set_queue("default", weight=2.0),
            "queue 'default': 2.0 is not a whole number from 1 to",
        ),
        (lambda fleet: fleet.set_queue("default", reserved_slots=True), "True is not a whole number"),
        (lambda fleet: fleet.set_tenant("a", weight=2.0), "2.0 is not a whole number"),
        (lambda fleet: fleet.set_tenant("a", weight=10**5000), "more than 64 bits"),
        (lambda fleet: fleet.create_queue("small", largest_bytes=10**5000), "more than 64 bits"),
        (lambda fleet: fleet.set_queue("default", largest_share=10**5000), "more than 64 bits"),
        (lambda fleet: fleet.set_tenant("a\udcff", weight=2), "half a character"),
        (lambda fleet: fleet.add("/x", tenant="a\udcff"), "half a character"),
        (lambda fleet: fleet.add("/x\udcff"), "is not a URL"),
        (
            lambda fleet: fleet.add("iceberg://l/x", settings={"iceberg.properties.branch": "a\udcff"}),
            "half a character",
        ),
        (
            lambda fleet: fleet.add("/x", settings={"store_options": {"region": "x"}}),
            "must be text or a number",
        ),
    ],
)
def test_what_nobody_could_read_is_not_written(
    fleet: str, change: Callable[[lithify.Fleet], object], says: str
) -> None:
    """It would be the end of the fleet: every change begins with reading the latest catalog."""
    before = lithify.Fleet(fleet).catalog()
    with pytest.raises(lithify.Refused, match=says):
        change(lithify.Fleet(fleet))
    assert lithify.Fleet(fleet).catalog() == before
    assert lithify.Fleet(fleet).set_queue("default", weight=3).weight == 3


def test_a_name_that_is_no_utf8_is_refused_on_the_command_line(fleet: str) -> None:
    result = invoke("fleet", "tenant", "set", "--weight", "2", fleet, "a\udcff")
    assert result.exit_code == 2
    assert "nothing was written" in " ".join(result.stderr.split())
    assert invoke_json("fleet", "tenant", "list", fleet) == {"tenants": []}


def test_settings_of_a_rule_may_be_numbers_and_truth_values(fleet: str) -> None:
    given = {"slatedb.block_size": 4096, "slatedb.enable_trivial_move": True, "service.max_attempts": "3"}
    (rule,) = lithify.Fleet(fleet).add("/x", settings=given).rules
    assert rule.settings == {
        "slatedb.block_size": "4096",
        "slatedb.enable_trivial_move": "true",
        "service.max_attempts": "3",
    }
    assert lithify.Fleet(fleet).catalog().catalog.rules == (rule,)


# Secrets


SECRETS = (
    ("iceberg.properties.uri", "postgresql://user:hunter22@host/db"),
    ("store_options.proxy_url", "http://user:hunter22@host/"),
    ("store_options.adls.sas-token.acct.dfs.core.windows.net", "hunter22"),
    ("store_options.endpoint", "https://host/?sv=2022&sig=hunter22"),
    ("store_options.aws_secret_access_key", "hunter22"),
)


@pytest.mark.parametrize(("name", "value"), SECRETS)
def test_a_secret_is_no_setting_of_a_rule(fleet: str, name: str, value: str) -> None:
    """Everybody who reads the fleet would see it."""
    result = invoke("fleet", "add", "--setting", f"{name}={value}", fleet, "/x")
    assert result.exit_code == 2
    assert f"the setting {name} is or contains a secret" in " ".join(result.stderr.split())
    assert "hunter22" not in result.stderr
    assert lithify.Fleet(fleet).catalog().catalog.rules == ()


def test_what_was_added_before_it_was_known_as_a_secret_is_masked_and_does_no_harm(
    fleet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("lithify.fleet.catalog.changes.check_public", lambda rule: None)
        for check in ("check_public", "check_allowed", "_check_names", "_check_values"):
            earlier.setattr(f"lithify.api.fleets.{check}", lambda *_: None)
        lithify.Fleet(fleet).add("/x", settings={**dict(SECRETS), "slatedb.block_size": "4096"})
    assert "hunter22" not in invoke("fleet", "list", fleet).stdout
    document = invoke_json("fleet", "list", fleet)
    assert "hunter22" not in str(document)
    (rule,) = document["rules"]
    assert rule["settings"]["slatedb.block_size"] == "4096"
    assert rule["settings"]["iceberg.properties.uri"] == "postgresql://********@host/db"
    lithify.Fleet(fleet).add("/y")
    lithify.Fleet(fleet).remove("/x")
