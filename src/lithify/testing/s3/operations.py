"""The operations of S3: from a request to its effect and its answer.

All are strongly consistent and atomic. Signatures and checksums are not checked. Supported conditions:
`If-None-Match: *` and `If-Match` for a write in one request, a copy and the completion of an upload; both
with etags for a read.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from lithify.testing.s3.answers import S3Answer, S3Error, xml_answer
from lithify.testing.s3.buckets import Buckets, S3Bucket, beyond
from lithify.testing.s3.objects import StoredObject
from lithify.testing.s3.quirks import Quirk, of_answer, of_write
from lithify.testing.s3.requests import Operation, Request

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_KEPT = {
    "content-type": "Content-Type",
    "content-encoding": "Content-Encoding",
    "content-language": "Content-Language",
    "content-disposition": "Content-Disposition",
    "cache-control": "Cache-Control",
}
_META = "x-amz-meta-"
_DEFAULT_TYPE = "binary/octet-stream"


class Operations:
    """All supported operations on `buckets`."""

    def __init__(self, buckets: Buckets, *, whole_seconds: bool = False) -> None:
        self._buckets = buckets
        self.quirks: frozenset[Quirk] = frozenset()
        self._listed_ms = 1000 if whole_seconds else 1
        self.not_allowed: frozenset[Operation] = frozenset()
        """Operations answered by 405, as table buckets of S3 do for some."""
        self._by_operation: dict[Operation, Callable[[Request], S3Answer]] = {
            Operation.GET: self._get,
            Operation.HEAD: self._head,
            Operation.PUT: self._put,
            Operation.COPY: self._copy,
            Operation.DELETE: self._delete,
            Operation.DELETE_MANY: self._delete_many,
            Operation.LIST: self._list,
            Operation.BEGIN_UPLOAD: self._begin_upload,
            Operation.PUT_PART: self._put_part,
            Operation.COMPLETE_UPLOAD: self._complete_upload,
            Operation.ABORT_UPLOAD: self._abort_upload,
            Operation.LIST_UPLOADS: self._list_uploads,
            Operation.LIST_BUCKETS: self._list_buckets,
            Operation.CREATE_BUCKET: self._create_bucket,
            Operation.HEAD_BUCKET: self._head_bucket,
            Operation.DELETE_BUCKET: self._delete_bucket,
            Operation.OTHER: self._other,
        }

    def answer(self, request: Request) -> S3Answer:
        try:
            if request.operation in self.not_allowed:
                raise S3Error(405, "MethodNotAllowed", "The specified method is not allowed here.")
            return of_answer(self._by_operation[request.operation](request), self.quirks)
        except S3Error as error:
            return error.answer(request.path, body=request.method != "HEAD")

    # Objects

    def _get(self, request: Request) -> S3Answer:
        return _read(request, self._bucket(request).get(request.key), body=True)

    def _head(self, request: Request) -> S3Answer:
        return _read(request, self._bucket(request).get(request.key), body=False)

    def _put(self, request: Request) -> S3Answer:
        bucket = self._bucket(request)
        _check_write(request, bucket, self.quirks)
        stored = StoredObject(request.body, _kept_headers(request))
        bucket.put(request.key, stored)
        return S3Answer(200, {"ETag": stored.etag})

    def _copy(self, request: Request) -> S3Answer:
        bucket = self._bucket(request)
        _check_write(request, bucket, self.quirks)
        name, _, key = unquote(request.headers["x-amz-copy-source"]).removeprefix("/").partition("/")
        source = self._buckets.get(name).get(key)
        is_replaced = request.headers.get("x-amz-metadata-directive", "").upper() == "REPLACE"
        copied = source.copy(_kept_headers(request) if is_replaced else source.headers)
        bucket.put(request.key, copied)
        return xml_answer(
            "CopyObjectResult",
            f"<ETag>{escape(copied.etag)}</ETag><LastModified>{_iso(copied.modified_s)}</LastModified>",
        )

    def _delete(self, request: Request) -> S3Answer:
        self._bucket(request).delete(request.key)
        return S3Answer(204)

    def _delete_many(self, request: Request) -> S3Answer:
        bucket, document = self._bucket(request), _document(request)
        keys = [
            found.text or "" for item in document.findall("{*}Object") for found in item.findall("{*}Key")
        ]
        if not 0 < len(keys) <= MAX_KEYS:
            raise S3Error(400, "MalformedXML", f"{len(keys)} keys to delete.")
        for key in keys:
            bucket.delete(key)
        is_quiet = document.findtext("{*}Quiet", "").lower() == "true"
        deleted = [f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys if not is_quiet]
        return xml_answer("DeleteResult", "".join(deleted))

    def _list(self, request: Request) -> S3Answer:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        token, start_after = query.get("continuation-token"), query.get("start-after", "")
        limit = min(_number(query.get("max-keys", str(MAX_KEYS)), "max-keys"), MAX_KEYS)
        page = page_of(
            self._bucket(request),
            prefix,
            delimiter,
            start_after if token is None else last_of(token),
            limit,
        )
        is_coded = query.get("encoding-type") == "url"
        coded = quote if is_coded else escape
        parts = [f"<Name>{request.bucket}</Name><Prefix>{coded(prefix)}</Prefix>"]
        parts += [f"<Delimiter>{coded(delimiter)}</Delimiter>" if delimiter else ""]
        parts += [f"<MaxKeys>{limit}</MaxKeys><KeyCount>{page.count}</KeyCount>"]
        parts += ["<EncodingType>url</EncodingType>" if is_coded else ""]
        parts += [f"<StartAfter>{coded(start_after)}</StartAfter>" if start_after else ""]
        parts += [f"<ContinuationToken>{escape(token)}</ContinuationToken>" if token is not None else ""]
        parts += [f"<IsTruncated>{str(page.token is not None).lower()}</IsTruncated>"]
        if page.token is not None:
            parts += [f"<NextContinuationToken>{page.token}</NextContinuationToken>"]
        parts += [
            f"<Contents><Key>{coded(key)}</Key>"
            f"<LastModified>{_iso(stored.modified_s, self._listed_ms)}</LastModified>"
            f"<ETag>{escape(stored.etag)}</ETag><Size>{stored.size}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for key, stored in page.objects
        ]
        parts += [f"<CommonPrefixes><Prefix>{coded(p)}</Prefix></CommonPrefixes>" for p in page.prefixes]
        return xml_answer("ListBucketResult", "".join(parts))

    # Uploads in parts

    def _begin_upload(self, request: Request) -> S3Answer:
        upload_id = self._bucket(request).begin(request.key, _kept_headers(request))
        return xml_answer(
            "InitiateMultipartUploadResult",
            f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key><UploadId>{upload_id}</UploadId>",
        )

    def _put_part(self, request: Request) -> S3Answer:
        number = _number(request.query.get("partNumber", ""), "partNumber")
        upload = self._bucket(request).upload(request.key, request.query["uploadId"])
        if upload.made is not None:
            raise S3Error(404, "NoSuchUpload", "The specified upload does not exist.")
        return S3Answer(200, {"ETag": upload.put(number, request.body)})

    def _complete_upload(self, request: Request) -> S3Answer:
        bucket = self._bucket(request)
        upload = bucket.upload(request.key, request.query["uploadId"])
        there = bucket.find(request.key)
        if upload.made is None:
            _check_write(request, bucket, self.quirks)
            named = [
                (_number(part.findtext("{*}PartNumber", ""), "PartNumber"), part.findtext("{*}ETag", ""))
                for part in _document(request).findall("{*}Part")
            ]
            there = upload.join(named)
            bucket.put(request.key, there)
        elif there is not upload.made:
            raise S3Error(404, "NoSuchUpload", "The specified upload does not exist.")
        return xml_answer(
            "CompleteMultipartUploadResult",
            f"<Location>/{request.bucket}/{escape(quote(request.key))}</Location>"
            f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key>"
            f"<ETag>{escape(there.etag)}</ETag>",
        )

    def _abort_upload(self, request: Request) -> S3Answer:
        bucket, upload_id = self._bucket(request), request.query["uploadId"]
        if bucket.upload(request.key, upload_id).made is None:
            del bucket.uploads[upload_id]
        return S3Answer(204)

    def _list_uploads(self, request: Request) -> S3Answer:
        """List all uploads on one page."""
        prefix = request.query.get("prefix", "")
        found = [
            (upload.key, upload_id)
            for upload_id, upload in self._bucket(request).uploads.items()
            if upload.made is None and upload.key.startswith(prefix)
        ]
        uploads = [
            f"<Upload><Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId></Upload>"
            for key, upload_id in sorted(found)
        ]
        return xml_answer(
            "ListMultipartUploadsResult",
            f"<Bucket>{request.bucket}</Bucket><IsTruncated>false</IsTruncated>{''.join(uploads)}",
        )

    # Buckets

    def _list_buckets(self, request: Request) -> S3Answer:
        names = [f"<Bucket><Name>{name}</Name></Bucket>" for name in self._buckets.names()]
        return xml_answer("ListAllMyBucketsResult", f"<Buckets>{''.join(names)}</Buckets>")

    def _create_bucket(self, request: Request) -> S3Answer:
        """Create a bucket; an existing one is not an error, as in us-east-1."""
        self._buckets.create(request.bucket)
        return S3Answer(200, {"Location": f"/{request.bucket}"})

    def _head_bucket(self, request: Request) -> S3Answer:
        self._bucket(request)
        return S3Answer(200)

    def _delete_bucket(self, request: Request) -> S3Answer:
        self._buckets.delete(request.bucket)
        return S3Answer(204)

    def _other(self, request: Request) -> S3Answer:
        raise S3Error(501, "NotImplemented", f"{request.method} {request.path} {sorted(request.query)}")

    def _bucket(self, request: Request) -> S3Bucket:
        return self._buckets.get(request.bucket)


def _read(request: Request, stored: StoredObject, *, body: bool) -> S3Answer:
    asked = request.headers
    if asked.get("if-match", "*") not in ("*", stored.etag, stored.etag.strip('"')):
        raise S3Error(
            412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold"
        )
    headers = {
        "ETag": stored.etag,
        "Last-Modified": _http_date(int(stored.modified_s)),
        "Accept-Ranges": "bytes",
        **stored.headers,
    }
    if asked.get("if-none-match") in ("*", stored.etag, stored.etag.strip('"')):
        return S3Answer(304, headers)
    start, end, status = 0, stored.size, 200
    if (span := _span(asked.get("range", ""), stored.size)) is not None:
        start, end = span
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{stored.size}"
        status = 206
    headers["Content-Length"] = str(end - start)
    return S3Answer(status, headers, stored.cut(start, end) if body else ())


def _span(text: str, size: int) -> tuple[int, int] | None:
    """Return start and end of the requested range; `None` for the whole object."""
    match = _RANGE.fullmatch(text)
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return None
    if start >= size:
        raise S3Error(416, "InvalidRange", "The requested range is not satisfiable")
    return start, end


def _check_write(request: Request, bucket: S3Bucket, quirks: Collection[Quirk]) -> None:
    there = bucket.find(request.key)
    headers = of_write(request.headers, quirks)
    unless, wanted = headers.get("if-none-match"), headers.get("if-match")
    if unless is not None and unless != "*":
        raise S3Error(501, "NotImplemented", "If-None-Match of a write has to be *")
    if wanted is not None and there is None:
        raise S3Error(404, "NoSuchKey", "The specified key does not exist.")
    is_other = wanted is not None and there is not None and wanted.strip('"') != there.etag.strip('"')
    if is_other or (unless is not None and there is not None):
        raise S3Error(
            412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold"
        )


def _kept_headers(request: Request) -> dict[str, str]:
    """Return the headers that are stored with an object."""
    kept = {"Content-Type": _DEFAULT_TYPE}
    for name, value in request.headers.items():
        if name.startswith(_META):
            kept[name] = value
        elif name in _KEPT:
            plain = value if name != "content-encoding" else _without_chunks(value)
            if plain:
                kept[_KEPT[name]] = plain
    return kept


def _without_chunks(codings: str) -> str:
    return ",".join(coding for coding in codings.split(",") if coding.strip() != "aws-chunked")


def _document(request: Request) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(b"".join(request.body))
    except ElementTree.ParseError as error:
        raise S3Error(400, "MalformedXML", "The XML you provided was not well-formed") from error


def _number(text: str, name: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise S3Error(400, "InvalidArgument", f"{name} is no number: {text!r}")
    return int(text)


@lru_cache(maxsize=1024)
def _http_date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def _iso(seconds: float, unit_ms: int = 1) -> str:
    milliseconds = int(seconds * 1000) // unit_ms * unit_ms
    return (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000)) + f".{milliseconds % 1000:03d}Z"
    )


MAX_KEYS = 1000


@dataclass(slots=True)
class Page:
    """A page of ListObjectsV2: objects and common prefixes in order, and the continuation token if there are
    more.

    1. A page has only keys that start with the prefix, after the continuation token or else after
       `start-after`.
    2. With a delimiter, keys that contain it after the prefix are listed once, as their common prefix, and
       skipped by bisection. A common prefix of an earlier page is not listed again: a token is the last
       listed key or common prefix.
    3. Keys and common prefixes both count towards the page size.
    """

    objects: list[tuple[str, StoredObject]] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    token: str | None = None

    @property
    def count(self) -> int:
        return len(self.objects) + len(self.prefixes)


def page_of(bucket: S3Bucket, prefix: str, delimiter: str, after: str, limit: int) -> Page:
    keys, page, last = bucket.keys_under(prefix), Page(), after
    at = bisect.bisect_right(keys, after) if after else 0
    while at < len(keys) and limit > 0:
        key = keys[at]
        end = key.find(delimiter, len(prefix)) if delimiter else -1
        common = key[: end + len(delimiter)] if end >= 0 else ""
        if common and after.startswith(common):
            at = _skip(keys, common)
            continue
        if page.count == limit:
            page.token = _token(last)
            break
        if common:
            page.prefixes.append(common)
            at, last = _skip(keys, common), common
        else:
            page.objects.append((key, bucket.get(key)))
            at, last = at + 1, key
    return page


def _skip(keys: Sequence[str], common: str) -> int:
    after = beyond(common)
    return bisect.bisect_left(keys, after) if after else len(keys)


def _token(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode()


def last_of(token: str) -> str:
    """Return the last listed key or common prefix that `token` encodes."""
    try:
        return base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise S3Error(400, "InvalidArgument", "The continuation token provided is incorrect") from error
