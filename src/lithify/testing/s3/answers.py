"""Answers: a status, headers and a body in pieces. Errors are answers too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple
from xml.sax.saxutils import escape

from lithify.testing.s3.objects import Buffer

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\nServer: S3\r\nx-amz-request-id: 0\r\n"
    for status in HTTPStatus
}
_NO_BODY = frozenset({204, 304})


class S3Error(Exception):
    """A request that cannot be served, with S3's code for it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.status, self.code, self.message = status, code, message

    def answer(self, path: str, *, body: bool = True) -> S3Answer:
        """Return the answer in S3's format, without a body for HEAD."""
        if not body:
            return S3Answer(self.status)
        return xml_answer(
            "Error",
            f"<Code>{self.code}</Code><Message>{escape(self.message)}</Message>"
            f"<Resource>{escape(path)}</Resource><RequestId>0</RequestId>",
            status=self.status,
            namespace=False,
        )


class S3Answer(NamedTuple):
    """An answer. Its length is added as a header unless `headers` has one (of a HEAD)."""

    status: int
    headers: Mapping[str, str] = {}
    body: Sequence[Buffer] = ()

    @property
    def size(self) -> int:
        return sum(map(len, self.body))

    def head(self) -> bytes:
        lines = "".join([f"{name}: {value}\r\n" for name, value in self.headers.items()])
        if self.status not in _NO_BODY and "Content-Length" not in self.headers:
            lines += f"Content-Length: {self.size}\r\n"
        return f"{_STATUS_LINES[self.status]}{lines}\r\n".encode("latin-1")


def xml_answer(root: str, content: str, *, status: int = 200, namespace: bool = True) -> S3Answer:
    """Return an XML document whose `content` is already XML."""
    of = f' xmlns="{_NAMESPACE}"' if namespace else ""
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}{of}>{content}</{root}>'
    return S3Answer(status, {"Content-Type": "application/xml"}, [text.encode()])
