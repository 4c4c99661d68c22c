"""The documentation site: pages of reference have all that there is, and links lead somewhere.

It is built once, as `make site` does: MkDocs fails where it has anything to warn of. The rest looks at the
Markdown that it is built from.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main
from website.links import REPOSITORY, ROOT_PAGES, relinked, source_of
from website.navigation import REST, listed, whole
from website.reference import ROOT, SETTINGS_SCHEMA, pages, settings_schema

import lithify
from lithify.cli.config import as_toml
from lithify.cli.main import app
from lithify.config.loading import load
from lithify.config.model import options
from lithify.datasets.registry import config_type
from lithify.observe.metrics import Metrics
from lithify.testing import ManualClock
from lithify.web.api import description
from tests.engine.waiting import child_environment
from tests.metrics.test_metrics import names_of

DOCS = ROOT / "docs"
REFERENCE = pages()


@cache
def site() -> dict[str, str]:
    """Every page in Markdown, by its path in the site, with the links that it has there."""
    texts = {path.relative_to(DOCS).as_posix(): path.read_text() for path in DOCS.rglob("*.md")}
    texts |= {page: (ROOT / source).read_text() for source, page in ROOT_PAGES.items()}
    texts |= {page: text for page, text in REFERENCE.items() if page.endswith(".md")}
    return {page: relinked(text, page) for page, text in texts.items()}


def configuration() -> Any:
    return import_module("yaml").safe_load((ROOT / "mkdocs.yml").read_text())


def test_every_command_and_option_is_there() -> None:
    def walk(group: Any, path: str) -> None:
        for name, command in group.commands.items():
            heading = f"{path} {name}"
            (section,) = re.findall(rf"(?ms)^#+ {heading}$\n(.*?)(?=^#+ lithify|\Z)", text)
            if hasattr(command, "commands"):
                walk(command, heading)
            else:
                assert set(re.findall(r"[` ](--[\w-]+)", section)) >= {
                    option for p in command.params for option in p.opts if option.startswith("--")
                }

    text = REFERENCE["reference/commands.md"]
    walk(typer.main.get_command(app), "lithify")


def test_every_setting_is_there() -> None:
    text = REFERENCE["reference/settings.md"]
    for option in options(config_type()):
        section, _, name = option.name.rpartition(".")
        assert f"## {section}\n" in text or not section
        assert f"| `{name}` |" in text
        assert f"`LITHIFY_{option.name.replace('.', '__').upper()}`" in text


def test_every_metric_is_there() -> None:
    shown = set(re.findall(r"(?m)^\| `(lithify_\w+)`", REFERENCE["reference/metrics.md"]))
    names = {
        name for name in names_of(Metrics(ManualClock(), coordinates=True)) if name.startswith("lithify_")
    }
    of_histograms = {name for name in names if name.endswith(("_bucket", "_sum", "_count"))}
    assert names - of_histograms <= shown
    assert {name.rpartition("_")[0] for name in of_histograms} <= shown


def test_every_request_is_there() -> None:
    shown = re.findall(r"(?m)^\| `(?:GET|POST) ([^`]+)`", REFERENCE["reference/http.md"])
    assert sorted(shown) == sorted(description(has_fleet=True)["paths"])


def test_every_public_name_is_there() -> None:
    shown = re.findall(r"(?m)^::: lithify\.(?:[\w.]+\.)?(\w+)$", REFERENCE["reference/python.md"])
    assert sorted(shown) == sorted(lithify.__all__)


def problems(settings: object) -> list[str]:
    validator = import_module("jsonschema").Draft202012Validator(settings_schema())
    validator.check_schema(validator.schema)
    return [error.message for error in validator.iter_errors(settings)]


def test_the_schema_takes_settings_that_lithify_takes(tmp_path: Path) -> None:
    defaults = tomllib.loads(as_toml(load(model=config_type()).settings(), {}))
    other = """
        [service]
        poll_interval_ms = 1000
        [slatedb]
        max_sst_size = 1000
        block_size = "8KiB"
        [store_options]
        aws_region = "eu-central-1"
    """
    (tmp_path / "lithify.toml").write_text(other)
    assert load(tmp_path / "lithify.toml", model=config_type())
    assert problems(defaults) == problems(tomllib.loads(other)) == []
    assert len(problems({"slatedb": {"no_such": 1}})) == len(problems({"metrics": {"host": 1}})) == 1


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("deployment.md", "[a](api.md#settings)", "[a](api.md#settings)"),
        ("index.md", "[a](docs/api.md)", "[a](api.md)"),
        ("howto/kubernetes.md", "[a](../deployment.md#x)", "[a](../deployment.md#x)"),
        ("protocol.md", "[a](../ARCHITECTURE.md)", "[a](architecture.md)"),
        ("tutorials/table.md", "[a](../../README.md#x)", "[a](../index.md#x)"),
        ("howto/minio.md", "[a](../../deploy/x)", f"[a]({REPOSITORY}/blob/main/deploy/x)"),
        ("iceberg.md", "[a](b.md) in [c](#d)", "[a](b.md) in [c](#d)"),
        ("index.md", "[a](https://b.example/c.md#d)", "[a](https://b.example/c.md#d)"),
    ],
)
def test_links_are_those_of_the_site(page: str, link: str, expected: str) -> None:
    assert relinked(link, page) == expected


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as Python-Markdown makes them."""
    outside = re.sub(r"(?ms)^ *```.*?^ *```", "", text)
    headings = re.findall(r"(?m)^#+ (.*)$", outside)
    bare = (
        re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h)).strip().lower() for h in headings
    )
    return {re.sub(r"[-\s]+", "-", heading) for heading in bare}


@pytest.mark.parametrize("page", sorted(site()))
def test_links_lead_somewhere(page: str) -> None:
    texts = site()
    for target, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)", texts[page]):
        if re.match(r"[a-z]+:", target):
            inside = target.removeprefix(f"{REPOSITORY}/blob/main/")
            assert inside == target or (ROOT / inside).exists(), f"{source_of(page)}: {target}"
            continue
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page
        is_there = path in texts or path == SETTINGS_SCHEMA or (DOCS / path).is_file()
        assert is_there, f"{source_of(page)}: {target}"
        assert not anchor or anchor in anchors(texts[path]), f"{source_of(page)}: {target}#{anchor}"


def test_every_page_can_be_found() -> None:
    nav = configuration()["nav"]
    assert set(listed(nav)) <= set(site())
    assert sorted(listed(whole(nav, DOCS))) == sorted(site())


def test_a_new_document_is_added(tmp_path: Path) -> None:
    for name in ("old.md", "new.md"):
        (tmp_path / name).touch()
    assert whole([{"A": "a.md"}, {REST: [{"Old": "old.md"}]}], tmp_path) == [
        {"A": "a.md"},
        {REST: [{"Old": "old.md"}, "new.md"]},
    ]


def test_it_is_built_and_asks_no_other_host(tmp_path: Path) -> None:
    assert configuration()["strict"] is True
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for page in site():
        made = tmp_path / page.removesuffix(".md").removesuffix("index") / "index.html"
        shown = made.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\bsrc=\"?([^\" >]+)", shown)
        loaded += re.findall(r"<link[^>]*rel=\"?stylesheet\"?[^>]*href=\"?([^\" >]+)", shown)
        assert loaded
        assert not [url for url in loaded if "//" in url], page
        assert "api.github.com" not in shown
        assert 'data-md-component="source"' not in shown, "asks for the number of stars"
    python = (tmp_path / "reference" / "python" / "index.html").read_text()
    assert all(
        f'id="{name}"' in python for name in re.findall(r"::: ([\w.]+)", REFERENCE["reference/python.md"])
    )
    assert (tmp_path / SETTINGS_SCHEMA).is_file()
