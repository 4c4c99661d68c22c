"""Renders a Helm chart where there is no Helm: the part of its language that our chart uses.

1. A template is text with actions, `{{ … }}`; a dash beside the braces takes the white space there away.
2. `define`, `if`/`else`, `with` and `range` enclose what stands up to their `end`; every other action is a
   pipeline of functions, whose outcome is put in its place.
3. What a template asks for must be there: a value that values.yaml does not have is an error, where Helm
   would write nothing. So is a function that is not among `FUNCTIONS`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

_ACTION = re.compile(r"\{\{(-?)\s*(/\*.*?\*/|.*?)\s*(-?)\}\}", re.DOTALL)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\(|\)|\||[^\s()|]+')
yaml: Any = import_module("yaml")


@dataclass(slots=True)
class Node:
    """Text, an expression, or a block with what it encloses."""

    kind: str
    said: str = ""
    body: list[Node] = field(default_factory=list)
    otherwise: list[Node] = field(default_factory=list)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, trims = 0, False
    for match in _ACTION.finditer(text):
        before = text[at : match.start()]
        before = before.lstrip() if trims else before
        yield "text", before.rstrip() if match[1] else before
        if not match[2].startswith("/*"):
            yield "action", match[2]
        at, trims = match.end(), bool(match[3])
    yield "text", text[at:].lstrip() if trims else text[at:]


def parse(text: str) -> list[Node]:
    """The nodes of a template."""
    root = Node("root")
    open_blocks, into = [root], [root.body]
    for kind, said in _tokens(text):
        word, _, rest = said.partition(" ")
        if kind == "text":
            into[-1].append(Node("text", said))
        elif word in ("define", "if", "with", "range"):
            block = Node(word, rest)
            into[-1].append(block)
            open_blocks.append(block)
            into.append(block.body)
        elif word == "else":
            assert not rest, said
            into[-1] = open_blocks[-1].otherwise
        elif word == "end":
            open_blocks.pop()
            into.pop()
        else:
            into[-1].append(Node("value", said))
    assert len(open_blocks) == 1, f"{open_blocks[-1].kind} {open_blocks[-1].said} has no end"
    return root.body


class Chart:
    """A folder with a chart, rendered for values."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.values: dict[str, Any] = yaml.safe_load((folder / "values.yaml").read_text())
        self.about: dict[str, Any] = yaml.safe_load((folder / "Chart.yaml").read_text())
        self.used: set[str] = set()
        """The values that were asked for."""
        self._defined: dict[str, list[Node]] = {}

    def render(
        self, values: Mapping[str, Any], release: str = "here", namespace: str = "spark"
    ) -> dict[str, str]:
        """What each template gives, by its name. `values` win over the chart's own."""
        about = {name[0].upper() + name[1:]: value for name, value in self.about.items()}
        root = {
            "Values": merged(self.values, values),
            "Release": {"Name": release, "Namespace": namespace},
            "Chart": about,
        }
        parsed = {
            path.name: parse(path.read_text()) for path in sorted((self.folder / "templates").iterdir())
        }
        for nodes in parsed.values():
            self._defined |= {json.loads(node.said): node.body for node in nodes if node.kind == "define"}
        return {
            name: self._drawn(nodes, root, {"$": root})
            for name, nodes in parsed.items()
            if not name.startswith("_")
        }

    def documents(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The objects of Kubernetes that it makes."""
        texts = (text for name, text in self.render(values).items() if name.endswith(".yaml"))
        return [document for text in texts for document in yaml.safe_load_all(text) if document]

    def _drawn(self, nodes: list[Node], dot: Any, names: dict[str, Any]) -> str:
        return "".join(self._node(node, dot, names) for node in nodes)

    def _node(self, node: Node, dot: Any, names: dict[str, Any]) -> str:
        match node.kind:
            case "text":
                return node.said
            case "define":
                return ""
            case "if":
                is_so = self._value(node.said, dot, names)
                return self._drawn(node.body if is_so else node.otherwise, dot, names)
            case "with":
                inner = self._value(node.said, dot, names)
                return (
                    self._drawn(node.body, inner, names) if inner else self._drawn(node.otherwise, dot, names)
                )
            case "range":
                variables, separator, said = node.said.rpartition(" := ")
                found = self._value(said if separator else node.said, dot, names)
                pairs = sorted(found.items()) if isinstance(found, dict) else list(enumerate(found))
                called = [name.strip() for name in variables.split(",")] if separator else ["$index", "$item"]
                return "".join(
                    self._drawn(node.body, pair[1], names | dict(zip(called, pair, strict=True)))
                    for pair in pairs
                )
            case _:
                return _text(self._value(node.said, dot, names))

    def _value(self, said: str, dot: Any, names: dict[str, Any]) -> Any:
        words = _WORD.findall(said)
        value = self._pipeline(words, dot, names)
        assert not words, f"{said}: {words} is left"
        return value

    def _pipeline(self, words: list[str], dot: Any, names: dict[str, Any]) -> Any:
        piped: list[Any] = []
        while True:
            arguments: list[Any] = []
            while words and words[0] not in ("|", ")"):
                word = words.pop(0)
                if word == "(":
                    arguments.append(self._pipeline(words, dot, names))
                    assert words.pop(0) == ")"
                else:
                    arguments.append(self._word(word, dot, names))
            first, *rest = arguments
            value = first(*rest, *piped) if callable(first) else first
            if not words or words[0] == ")":
                return value
            words.pop(0)
            piped = [value]

    def _word(self, word: str, dot: Any, names: dict[str, Any]) -> Any:
        if word.startswith('"'):
            return json.loads(word)
        if word.isdigit():
            return int(word)
        if word == "include":
            return lambda name, where: self._drawn(self._defined[name], where, {"$": where})
        if word in FUNCTIONS:
            return FUNCTIONS[word]
        start, *path = word.split(".")
        if word.startswith(".Values"):
            self.used.add(word.removeprefix(".Values."))
        value = names[start] if start else dot
        for part in filter(None, path):
            value = value[part]
        return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "default": lambda other, value: value or other,
    "first": lambda found: found[0],
    "len": len,
    "nindent": lambda n, text: (
        "\n" + "\n".join(" " * n + line if line else line for line in text.split("\n"))
    ),
    "printf": lambda form, *values: form % values,
    "quote": lambda value: json.dumps(_text(value), ensure_ascii=False),
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "toYaml": lambda value: yaml.safe_dump(value, default_flow_style=False).rstrip("\n"),
}


def merged(one: Any, other: Any) -> Any:
    """Values over values: maps are put together, all else is replaced."""
    if not isinstance(one, dict) or not isinstance(other, Mapping):
        return other
    return {
        name: merged(one.get(name), other[name]) if name in other else one[name] for name in {**one, **other}
    }
