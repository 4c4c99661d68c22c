"""Spark's settings as functions of master, machine and user."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from lithify.engine.settings import (
    LocalMaster,
    driver_settings,
    dynamic_slots,
    is_loopback,
    is_open,
    java_options,
    launch_environment,
    log_config,
    max_attempts,
    parse_cpu_quota,
    parse_local,
    quote_options,
)

FOLDER = Path("/scratch/session")


def settings_of(master: str, preload: str | None = None, **user: str) -> dict[str, str]:
    return driver_settings(
        master,
        "test",
        cpus=8,
        folder=FOLDER,
        java=["-Done=1"],
        python_path=["/a", "/b"],
        preload=preload,
        user={name.replace("__", "."): value for name, value in user.items()},
        secret="s" * 64,
    )


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", LocalMaster(1, 4)),
        ("local[2]", LocalMaster(2, 4)),
        ("local[*]", LocalMaster(8, 4)),
        ("local[3,1]", LocalMaster(3, 1)),
        ("local[*, 7]", LocalMaster(8, 7)),
        ("local[0]", LocalMaster(1, 4)),
        ("local-cluster[2,1,512]", None),
        ("local[a]", None),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_local_masters_become_the_form_that_retries(master: str, expected: LocalMaster | None) -> None:
    assert parse_local(master, cpus=8) == expected
    assert settings_of(master)["spark.master"] == (expected.url if expected else master)


@pytest.mark.parametrize(
    ("master", "conf", "expected"),
    [
        ("local[2,4]", {}, 4),
        ("local[2,1]", {}, 1),
        ("local[2]", {}, 1),
        ("local", {"spark.task.maxFailures": "9"}, 1),
        ("spark://host:7077", {}, 4),
        ("spark://host:7077", {"spark.task.maxFailures": "9"}, 9),
    ],
)
def test_attempts_are_what_spark_will_do(master: str, conf: dict[str, str], expected: int) -> None:
    assert max_attempts(master, conf) == expected


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local[2]", True),
        ("local-cluster[2,1,512]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://10.0.0.7:7077", False),
        ("spark://127.0.0.1.example.com:7077", False),
        ("k8s://https://host", False),
        ("yarn", False),
    ],
)
def test_only_what_stays_on_this_machine_is_bound_to_loopback(master: str, expected: bool) -> None:
    assert is_loopback(master) is expected
    assert (settings_of(master).get("spark.driver.bindAddress") == "127.0.0.1") is expected
    environment = launch_environment(master, Path("/java"), "/python", {}, {})
    assert (environment.get("SPARK_LOCAL_IP") == "127.0.0.1") is expected


def test_short_heartbeats_are_for_clusters_only() -> None:
    assert "spark.network.timeout" not in settings_of("local[2]")
    cluster = settings_of("spark://host:7077")
    assert cluster["spark.network.timeout"] == "15s"
    assert "spark.local.dir" not in cluster
    assert "spark.executorEnv.PYTHONPATH" not in cluster


def test_the_users_settings_win() -> None:
    settings = settings_of("local[2]", spark__driver__memory="7g", spark__ui__enabled="true", own__key="1")
    assert settings["spark.driver.memory"] == "7g"
    assert settings["spark.ui.enabled"] == "true"
    assert settings["own.key"] == "1"


def test_preload_reaches_the_workers() -> None:
    assert "spark.executorEnv.LITHIFY_PRELOAD" not in settings_of("local")
    assert settings_of("local", preload="a.b:c")["spark.executorEnv.LITHIFY_PRELOAD"] == "a.b:c"


@pytest.mark.parametrize(
    ("user", "inherited", "expected"),
    [
        ({}, {}, "/own/python"),
        ({}, {"PYSPARK_PYTHON": "/env/python"}, "/env/python"),
        ({"spark.pyspark.python": "/conf/python"}, {"PYSPARK_PYTHON": "/env/python"}, "/conf/python"),
    ],
)
def test_python_of_the_workers(user: dict[str, str], inherited: dict[str, str], expected: str) -> None:
    environment = launch_environment("yarn", Path("/java"), "/own/python", user, inherited)
    assert environment["PYSPARK_PYTHON"] == expected
    assert environment["JAVA_HOME"] == "/java"


@pytest.mark.parametrize("option", ["-Dplain=1", "-Dwith=a space", '-Dquote="x"', "-Dback\\slash", "-Dit's"])
def test_options_survive_being_split_like_a_shell(option: str) -> None:
    assert shlex.split(quote_options(["-Dfirst", option])) == ["-Dfirst", option]


@pytest.mark.parametrize("archive", [None, FOLDER])
def test_the_drivers_jvm_compiles_no_more_than_pays(archive: Path | None) -> None:
    assert "-XX:TieredStopAtLevel=1" in java_options(FOLDER, FOLDER, archive)


def test_log_file_is_bounded() -> None:
    assert "size.size = 10MB" in log_config(FOLDER)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max 100000\n", None), ("200000 100000\n", 2), ("150000 100000\n", 2), ("", None), ("1 0", None)],
)
def test_cpu_quota(text: str, expected: int | None) -> None:
    assert parse_cpu_quota(text) == expected


@pytest.mark.parametrize(("length", "expected"), [(20, True), (60, True), (61, False), (200, False)])
def test_sockets_are_kept_in_the_sessions_folder_where_their_path_is_short_enough(
    length: int, expected: bool
) -> None:
    folder = Path("/" + "x" * (length - 1))
    settings = driver_settings(
        "local", "test", cpus=1, folder=folder, java=[], python_path=[], preload=None, user={}, secret=""
    )
    assert ("spark.python.unix.domain.socket.dir" in settings) is expected
    assert ("spark.python.unix.domain.socket.enabled" in settings) is expected, "they ask for no token"


SHUFFLE = {"spark__shuffle__service__enabled": "true"}


@pytest.mark.parametrize(
    ("master", "user", "expected"),
    [
        ("local", {}, {"": "true"}),
        ("local[2]", {}, {"": "true"}),
        ("local-cluster[1,1,512]", {}, {"": "true", ".secret": "s" * 64}),
        ("local-cluster[1,1,512]", {"spark__authenticate__secret": "x"}, {"": "true", ".secret": "x"}),
        ("k8s://https://host", {}, {"": "true"}),
        ("yarn", {}, {"": "true"}),
        ("yarn", SHUFFLE, {}),
        ("yarn", SHUFFLE | {"spark__authenticate": "true"}, {"": "true"}),
        ("spark://host:7077", {}, {}),
        ("spark://127.0.0.1:7077", {}, {}),
        (
            "spark://host:7077",
            {"spark__authenticate": "true", "spark__authenticate__secret": "x"},
            {"": "true", ".secret": "x"},
        ),
        ("local", {"spark__authenticate": "false"}, {"": "false"}),
        ("local-cluster[1,1,512]", {"spark__authenticate": "False"}, {"": "False"}),
    ],
)
def test_connections_are_authenticated_where_that_is_not_the_clusters_to_say(
    master: str, user: dict[str, str], expected: dict[str, str]
) -> None:
    settings = settings_of(master, **user)
    found = {n.removeprefix("spark.authenticate"): v for n, v in settings.items() if "authenticate" in n}
    assert found == expected
    is_on = expected.get("", "").lower() == "true"
    assert is_open(master, {n.replace("__", "."): v for n, v in user.items()}) is not is_on


@pytest.mark.parametrize(
    ("master", "conf", "expected"),
    [
        ("k8s://https://host", {"maxExecutors": "20", "cores": "4"}, 80),
        ("yarn", {"maxExecutors": "20"}, 20),
        ("spark://host:7077", {"maxExecutors": "2", "cores": "1"}, 2),
        ("spark://host:7077", {"maxExecutors": "2"}, None),
        ("yarn", {"maxExecutors": "20", "cores": "5", "cpus": "2"}, 40),
        ("yarn", {"cores": "4"}, None),
        ("yarn", {"maxExecutors": "many"}, None),
        ("yarn", {"maxExecutors": "20", "enabled": "false"}, None),
    ],
)
def test_executors_that_come_when_there_is_work_count_before_they_are_there(
    master: str, conf: dict[str, str], expected: int | None
) -> None:
    names = {"cores": "spark.executor.cores", "cpus": "spark.task.cpus"}
    given = {names.get(name, f"spark.dynamicAllocation.{name}"): value for name, value in conf.items()}
    given |= {"spark.master": master, "spark.dynamicAllocation.enabled": conf.get("enabled", "true")}
    assert dynamic_slots(given) == expected
