"""A request: its operation, key and headers.

Path style only (`/bucket/key`). A `+` in a path is a plus, in a query it is a space. Requests are counted and
delayed by operation, not by HTTP method.
"""

from __future__ import annotations

import time
from enum import StrEnum
from urllib.parse import parse_qsl, unquote

from lithify.testing.s3.objects import Buffer


class Operation(StrEnum):
    """Operations, by the names of S3's manual."""

    GET = "GetObject"
    HEAD = "HeadObject"
    PUT = "PutObject"
    COPY = "CopyObject"
    DELETE = "DeleteObject"
    DELETE_MANY = "DeleteObjects"
    LIST = "ListObjectsV2"
    BEGIN_UPLOAD = "CreateMultipartUpload"
    PUT_PART = "UploadPart"
    COMPLETE_UPLOAD = "CompleteMultipartUpload"
    ABORT_UPLOAD = "AbortMultipartUpload"
    LIST_UPLOADS = "ListMultipartUploads"
    LIST_BUCKETS = "ListBuckets"
    CREATE_BUCKET = "CreateBucket"
    HEAD_BUCKET = "HeadBucket"
    DELETE_BUCKET = "DeleteBucket"
    OTHER = "Other"
    """Any operation that this server does not support."""


class S3Verb(StrEnum):
    """Classes of operations that object stores serve at different speeds."""

    GET = "GET"
    HEAD = "HEAD"
    PUT = "PUT"
    POST = "POST"
    """The beginning and the completion of an upload in parts."""
    LIST = "LIST"
    DELETE = "DELETE"


_VERBS = {
    Operation.GET: S3Verb.GET,
    Operation.HEAD: S3Verb.HEAD,
    Operation.HEAD_BUCKET: S3Verb.HEAD,
    Operation.PUT: S3Verb.PUT,
    Operation.COPY: S3Verb.PUT,
    Operation.PUT_PART: S3Verb.PUT,
    Operation.CREATE_BUCKET: S3Verb.PUT,
    Operation.BEGIN_UPLOAD: S3Verb.POST,
    Operation.COMPLETE_UPLOAD: S3Verb.POST,
    Operation.LIST: S3Verb.LIST,
    Operation.LIST_UPLOADS: S3Verb.LIST,
    Operation.LIST_BUCKETS: S3Verb.LIST,
    Operation.DELETE: S3Verb.DELETE,
    Operation.DELETE_MANY: S3Verb.DELETE,
    Operation.DELETE_BUCKET: S3Verb.DELETE,
    Operation.ABORT_UPLOAD: S3Verb.DELETE,
    Operation.OTHER: S3Verb.GET,
}


class Request:
    """One request; `body` is set when it has arrived. Names of `headers` are in lower case."""

    __slots__ = (
        "body",
        "bucket",
        "headers",
        "key",
        "method",
        "operation",
        "path",
        "query",
        "size",
        "start_s",
        "verb",
    )

    def __init__(self, method: str, target: str, headers: dict[str, str]) -> None:
        path, _, query = target.partition("?")
        self.method, self.headers = method, headers
        self.path = unquote(path) if "%" in path else path
        self.query = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
        self.bucket, _, self.key = self.path[1:].partition("/")
        self.operation = self._operation()
        self.verb = _VERBS[self.operation]
        self.body: list[Buffer] = []
        self.size = 0
        """Bytes of the body as sent."""
        self.start_s = time.time()
        """When the head had arrived, in seconds since 1970."""

    @property
    def requester(self) -> str:
        """Return the access key id of the signature, which is not checked; empty if there is none."""
        return self.headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]

    def _operation(self) -> Operation:
        if self.key:
            return self._of_object()
        if self.bucket:
            return self._of_bucket()
        return Operation.LIST_BUCKETS if self.method == "GET" else Operation.OTHER

    def _of_object(self) -> Operation:
        query, is_part = self.query, "uploadId" in self.query
        is_copy = "x-amz-copy-source" in self.headers
        match self.method:
            case "GET" if not query or query.keys() <= {"x-id"}:
                return Operation.GET
            case "HEAD":
                return Operation.HEAD
            case "PUT" if is_part and not is_copy:
                return Operation.PUT_PART
            case "PUT" if not is_part and query.keys() <= {"x-id"}:
                return Operation.COPY if is_copy else Operation.PUT
            case "POST" if "uploads" in query:
                return Operation.BEGIN_UPLOAD
            case "POST" if is_part:
                return Operation.COMPLETE_UPLOAD
            case "DELETE":
                return Operation.ABORT_UPLOAD if is_part else Operation.DELETE
        return Operation.OTHER

    def _of_bucket(self) -> Operation:
        match self.method:
            case "GET" if self.query.get("list-type") == "2":
                return Operation.LIST
            case "GET" if "uploads" in self.query:
                return Operation.LIST_UPLOADS
            case "PUT" if not self.query:
                return Operation.CREATE_BUCKET
            case "HEAD":
                return Operation.HEAD_BUCKET
            case "DELETE" if not self.query:
                return Operation.DELETE_BUCKET
            case "POST" if "delete" in self.query:
                return Operation.DELETE_MANY
        return Operation.OTHER
