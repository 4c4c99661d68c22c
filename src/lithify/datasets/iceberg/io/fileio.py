"""PyIceberg's file access, with Lithify's retries.

`WaitingFileIO` wraps the FileIO that PyIceberg would have used, so metadata, manifests, footers, data files
and uploads are accessed as before, and retried like all other requests (`lithify.store.resilience.requests`).
PyArrow's own retries pause 25 ms, then twice as long without a bound or jitter, and are not logged; so they
are disabled for all requests that can be retried here:

1. Opening a file, reading its length, deleting it and each read: retried, and reads are hedged.
2. A file of up to `MAX_HELD_BYTES` is held in memory while it is written, and uploaded when it is closed; the
   whole upload is retried. If a file that must not be overwritten has the same bytes, it is the upload's own.
3. A larger file is streamed from that size on, by PyArrow. PyArrow's standard strategy retries its parts,
   with jitter and a bound; while waiting, Lithify checks whether the store is available, and logs if it is
   not. A remaining error fails the task, which Spark runs again. PyArrow publishes the existing parts of a
   failed upload; then the file, whose name is new, is deleted.

Files in a store on S3 that Lithify has already opened are accessed through that store (`stored_files`),
unless the catalog names another FileIO than PyIceberg's own choice. Files on the local disk are accessed
directly. A file outside the table's reach (`reach`) is refused before any request.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow.fs import AwsStandardS3RetryStrategy
from pyiceberg.catalog import Catalog
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, OutputFile, load_file_io
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.typedef import EMPTY_DICT, Properties

from lithify.base.errors import StoreUnavailable
from lithify.datasets.iceberg.io.catalog_requests import without_requests
from lithify.datasets.iceberg.io.file_objects import RandomReads, SequentialWrites
from lithify.datasets.iceberg.io.reach import REACH, check_reach
from lithify.datasets.iceberg.io.store_file_io import Lent, StoredFile
from lithify.store.objects import ObjectStore
from lithify.store.remote import PROBE_KEY
from lithify.store.resilience.causes import UNKNOWN_NAME, UNTRUSTED
from lithify.store.resilience.requests import Requests
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import known_of

MAX_HELD_BYTES = 32 * 1024 * 1024
_STRATEGY = "s3.retry-strategy-impl"
_OWN = "lithify.requests"
"""The key of the `Roots` of a catalog's files among its properties in this process."""
_GIVEN_IMPL = "lithify.py-io-impl"
_HERE = __name__
_LASTING = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
_LASTING_TEXT = re.compile(
    r"ACCESS_DENIED|INVALID_|SIGNATURE|MISSING_AUTHENTICATION_TOKEN|NO_SUCH_BUCKET|NO_SUCH_KEY"
    r"|RESOURCE_NOT_FOUND|VALIDATION|(?:HTTP status|status:) (?:3|4(?!08|29))"
)
_STATUS = r"(?:HTTP status|status:) "
_CAUSES = (
    (re.compile(r"couldn't connect|connection refused|curlCode: 7\b", re.I), "connection refused"),
    (re.compile(r"curlCode: 28\b|timed? ?out|REQUEST_TIMEOUT|status:? 408", re.I), "no answer in time"),
    (re.compile(r"curlCode: (?:18|52|55|56)\b|reset|broken pipe", re.I), "the connection broke"),
    (re.compile(rf"SLOW_DOWN|THROTTLING|SERVICE_UNAVAILABLE|{_STATUS}(?:429|503)"), "503 Slow Down"),
    (re.compile(rf"INTERNAL_FAILURE|{_STATUS}500"), "500 Internal Server Error"),
    (re.compile(rf"NETWORK_CONNECTION|{_STATUS}5(?!01|05)|UNAVAILABLE"), "the store failed"),
)
"""Patterns of transient errors, with their causes."""
_DOUBTFUL_CAUSES = (
    (re.compile(r"curlCode: 6\b|resolve host", re.I), UNKNOWN_NAME),
    (re.compile(r"curlCode: (?:35|51|60)\b|certificate", re.I), UNTRUSTED),
)

_T = TypeVar("_T")


class OnlyOnce(AwsStandardS3RetryStrategy):  # type: ignore[misc]
    """A strategy without retries: PyArrow sends each request once."""

    def __init__(self) -> None:
        super().__init__(max_attempts=1)


class Patiently(AwsStandardS3RetryStrategy):  # type: ignore[misc]
    """A strategy with which PyArrow retries the parts of an upload for some minutes."""

    def __init__(self) -> None:
        super().__init__(max_attempts=25)


class Roots:
    """The requests to each store with files of a catalog. Sent to tasks, without the lent stores."""

    def __init__(self, waiting: WaitPolicy | None = None) -> None:
        self.waiting = waiting if waiting is not None else WaitPolicy()
        self.lent = Lent()
        self._requests: dict[str, Requests] = {}

    def __reduce__(self) -> tuple[object, tuple[float]]:
        return _roots_elsewhere, (self.waiting.tasks_max_s,)

    def of(self, location: str, io: WaitingFileIO) -> Requests | None:
        """Return the requests to a file's store, which `io` accesses; `None` for the local disk."""
        parts = urlsplit(location)
        if parts.scheme in ("", "file") or len(parts.scheme) == 1:
            return None
        root = f"{parts.scheme}://{parts.netloc}"
        if root not in self._requests:
            known = known_of(root, {name: v for name, v in io.properties.items() if isinstance(v, str)})
            new = Requests(root, self.waiting, probe=lambda: io.probe(f"{root}/{PROBE_KEY}"), known=known)
            self._requests.setdefault(root, new)
        return self._requests[root]


def _roots_elsewhere(max_s: float) -> Roots:
    return Roots(WaitPolicy(max_s, tasks_max_s=max_s))


def let_wait(catalog: Catalog, waiting: WaitPolicy) -> None:
    """Retry requests for all files that this catalog opens from now on."""
    properties = catalog.properties
    if PY_IO_IMPL in properties:
        properties[_GIVEN_IMPL] = properties[PY_IO_IMPL]
    properties[PY_IO_IMPL] = f"{_HERE}.{WaitingFileIO.__name__}"
    properties[_OWN] = Roots(waiting)


def waiting_of(properties: Properties) -> WaitPolicy:
    """Return the wait policy of files that are accessed with these properties."""
    roots = properties.get(_OWN)
    return roots.waiting if isinstance(roots, Roots) else WaitPolicy()


def lend(store: ObjectStore, properties: Properties) -> None:
    """From now on, access the files of tables with these properties through `store`, if they are in it and it
    can be lent."""
    roots = properties.get(_OWN)
    if isinstance(roots, Roots):
        roots.lent.lend(store, properties)


def forget_metadata(properties: Properties) -> None:
    """Drop cached metadata files of these properties, so that they are read again."""
    roots = properties.get(_OWN)
    if isinstance(roots, Roots):
        roots.lent.recent.forget_all()


class WaitingFileIO(FileIO):
    """PyIceberg's file access with retries; see the module."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._inner: dict[tuple[str, bool], FileIO] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_inner": {}}

    def new_input(self, location: str) -> InputFile:
        return self._file(location)

    def new_output(self, location: str) -> OutputFile:
        return self._file(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        check_reach(path, self.properties)
        stored = self._stored(path)
        if stored is not None:
            stored.delete()
            return
        requests, inner = self._requests(path), self._of(path)
        if requests is None:
            inner.delete(path)
        else:
            requests.write(lambda: _asked(f"delete {path}", lambda: inner.delete(path)))

    def probe(self, location: str) -> None:
        """Request a file, whether it exists or not. Raise `StoreUnavailable` when there is no response; a
        denied access is a response."""
        with suppress(OSError):
            _asked(f"head {location}", lambda: self._of(location).new_input(location).exists())

    def _file(self, location: str) -> StoredFile | WaitingFile | PyArrowFile:
        check_reach(location, self.properties)
        stored = self._stored(location)
        if stored is not None:
            return stored
        requests = self._requests(location)
        file: Any = self._of(location).new_input(location)
        if requests is None:
            return cast(PyArrowFile, file)
        return WaitingFile(location, file, requests, lambda: self._of(location, streams=True))

    def _stored(self, location: str) -> StoredFile | None:
        if _GIVEN_IMPL in self.properties:
            return None
        return self._roots.lent.file(location, self.properties)

    @property
    def _roots(self) -> Roots:
        roots = self.properties.get(_OWN)
        assert isinstance(roots, Roots)
        return roots

    def _requests(self, location: str) -> Requests | None:
        return self._roots.of(location, self)

    def _of(self, location: str, *, streams: bool = False) -> FileIO:
        key = urlsplit(location).scheme, streams
        if key not in self._inner:
            strategy = Patiently if streams else OnlyOnce
            given = {
                name: value
                for name, value in without_requests(self.properties).items()
                if name not in (PY_IO_IMPL, _GIVEN_IMPL, _OWN, REACH)
            }
            if _GIVEN_IMPL in self.properties:
                given[PY_IO_IMPL] = self.properties[_GIVEN_IMPL]
            given.setdefault(_STRATEGY, f"{_HERE}.{strategy.__name__}")
            self._inner[key] = load_file_io(given, location)
        return self._inner[key]


class WaitingFile(InputFile, OutputFile):
    """A file of a store that may be unavailable."""

    def __init__(self, location: str, file: Any, requests: Requests, streaming: Callable[[], FileIO]) -> None:
        super().__init__(location)
        self._file = file
        self._requests = requests
        self._streaming = streaming

    def __len__(self) -> int:
        return self._read("head", lambda: len(self._file))

    def exists(self) -> bool:
        found: bool = self._read("head", self._file.exists)
        return found

    def open(self, seekable: bool = True) -> Any:
        stream = self._read("open", lambda: self._file.open(seekable=True))
        if not isinstance(stream, pa.NativeFile):  # of another library, whose reads cannot be retried
            return stream
        return _Reading(self.location, stream, self._requests)

    def create(self, overwrite: bool = False) -> Any:
        return _Writing(self, overwrite)

    def to_input_file(self) -> InputFile:
        return self

    def upload(self, data: bytes | memoryview, overwrite: bool) -> None:
        """Write the whole file."""
        tries = 0

        def write() -> None:
            nonlocal tries
            tries += 1
            try:
                with self._file.create(overwrite=overwrite) as stream:
                    stream.write(data)
            except FileExistsError:
                # A second attempt finds the first attempt's file, or another one.
                if tries == 1 or not self._holds(data):
                    raise

        self._requests.write(lambda: _asked(f"put {self.location}", write), len(data))

    def _holds(self, data: bytes | memoryview) -> bool:
        with self._file.open() as stream:
            found: bool = stream.size() == len(data) and stream.read() == data
        return found

    def delete(self) -> None:
        """Delete the file, even if it does not exist."""
        file = self._streaming()

        def delete() -> None:
            with suppress(FileNotFoundError):
                file.delete(self.location)

        self._requests.write(lambda: _asked(f"delete {self.location}", delete))

    def stream(self, overwrite: bool) -> Any:
        """Return a stream for the rest of a large file."""
        file = self._streaming().new_output(self.location)
        return self._requests.write(
            lambda: _asked(f"put {self.location}", lambda: file.create(overwrite=overwrite))
        )

    def send(self, call: Callable[[], object]) -> None:
        """Call a method of the stream that `stream` returned."""
        self._requests.sent(lambda: _asked(f"put {self.location}", call), MAX_HELD_BYTES)

    def _read(self, verb: str, call: Callable[[], _T]) -> _T:
        return self._requests.read(lambda: _asked(f"{verb} {self.location}", call))


class _Reading(RandomReads):
    """Reads of an open file, each of which is retried."""

    def __init__(self, location: str, file: pa.NativeFile, requests: Requests) -> None:
        super().__init__(location, file.size())
        self._file = file
        self._requests = requests

    def fetch(self, offset: int, length: int) -> bytes:
        what = f"get {self.location}"

        def read() -> bytes:
            data: bytes = self._file.read_at(length, offset)
            if len(data) != length:
                cause = "the answer broke off"
                raise StoreUnavailable(f"{what}: {cause} after {len(data)} of {length} bytes", cause)
            return data

        return self._requests.read(lambda: _asked(what, read), length)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _Writing(SequentialWrites):
    """A file that is held in memory until it is closed, or streamed if it is too large."""

    def __init__(self, file: WaitingFile, overwrite: bool) -> None:
        self._file = file
        self._overwrite = overwrite
        self._held = io.BytesIO()
        self._stream: Any = None

    def tell(self) -> int:
        held: int = self._held.tell() if self._stream is None else self._stream.tell()
        return held

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError(f"write to {self._file.location}, which is closed")
        view = memoryview(data).cast("B")
        if self._stream is None and self._held.tell() + view.nbytes <= MAX_HELD_BYTES:
            return self._held.write(view)
        try:
            if self._stream is None:
                self._stream = self._file.stream(self._overwrite)
                self._file.send(lambda: self._stream.write(self._held.getvalue()))
                self._held = io.BytesIO()
            self._file.send(lambda: self._stream.write(view))
        except BaseException as error:
            self.abandon(error)
            raise
        return view.nbytes

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._stream is None:
            self._file.upload(self._held.getvalue(), self._overwrite)
            return
        try:
            self._file.send(self._stream.close)
        except BaseException as error:
            self.abandon(error)
            raise

    def abandon(self, error: BaseException | None = None) -> None:
        """Delete the published part of the upload: PyArrow can end an upload only by publishing it, at the
        latest at garbage collection. The name belongs to this attempt alone."""
        self.closed = True
        stream, self._stream = self._stream, None
        if stream is None:
            return
        try:
            with suppress(OSError):  # a missing file is the desired result
                stream.close()
            del stream
            self._file.delete()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"and {self._file.location} may be there unfinished: {failure}")


def _asked(what: str, call: Callable[[], _T]) -> _T:
    with _translated(what):
        return call()


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Convert transient errors to `StoreUnavailable`; other errors stay as PyIceberg's callers expect
    them."""
    try:
        yield
    except _LASTING:
        raise
    except OSError as error:
        said = str(error)
        if _LASTING_TEXT.search(said):
            raise
        is_doubtful = False
        cause = _found(_CAUSES, said)
        if cause is None and isinstance(error, (ConnectionError, TimeoutError)):
            cause = "the connection broke"
        if cause is None:  # it is unknown whether the error is transient
            is_doubtful, cause = True, _found(_DOUBTFUL_CAUSES, said) or "the store failed"
        raise StoreUnavailable(f"{what}: {cause}: {said[:400]}", cause, is_doubtful=is_doubtful) from error


def _found(causes: tuple[tuple[re.Pattern[str], str], ...], said: str) -> str | None:
    return next((cause for pattern, cause in causes if pattern.search(said)), None)
