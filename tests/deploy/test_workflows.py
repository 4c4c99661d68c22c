"""What runs at every change and at a release, and the forms for issues."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(
    set((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"}
)


def read(path: Path) -> Any:
    return import_module("yaml").safe_load(path.read_text())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows(path: Path) -> None:
    """They run what there is, within a time, with no more rights than they need, and know no secret."""
    assert "secrets." not in path.read_text()
    document = read(path)
    assert document["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name, job in document["jobs"].items():
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(document["jobs"])
        for step in job["steps"]:
            run = step.get("run", "")
            assert ("uses" in step) != bool(run), name
            assert set(re.findall(r"\bmake (\w+)", run)) <= targets
            assert ".ci/run" not in run or (ROOT / ".ci" / "run").stat().st_mode & 0o111
            assert re.fullmatch(r"[\w./-]+@[\w./-]+", step.get("uses", "a@b"))


def test_a_release_is_trusted_by_what_it_is() -> None:
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == "build"
    assert "permissions" not in jobs["build"]
    (publishes,) = (step for step in jobs["publish"]["steps"] if "pypi-publish" in step["uses"])
    assert "with" not in publishes, "no password"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms(path: Path) -> None:
    form = read(path)
    assert {"name", "description", "body"} <= set(form)
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    assert any(field.get("validations", {}).get("required") for field in form["body"])
    for field in form["body"]:
        assert field["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes")
        assert "label" in field["attributes"] or field["type"] == "markdown"
