"""SlateDB's own client beside our numbered files: it reads past leftovers, and neither overtakes the
other unseen."""

from __future__ import annotations

from pathlib import Path

import pytest

from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.store.versions import Version, VersionConflict, VersionedFiles
from tests.judge.admin import Admin
from tests.judge.client import Database, open_db, open_reader
from tests.s3 import S3

ROWS = [(b"key%03d" % n, b"value%d" % n) for n in range(50)]
NEVER = "600s"


class Shared:
    """A database of the official client, and our view of its manifests."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self.url, self.options = url, options
        self.store, self.root = open_store(url, options)

    def open(self, **settings: object) -> Database:
        return open_db(self.url, settings=settings, store_options=self.options)

    def rows(self) -> list[tuple[bytes, bytes]]:
        with open_reader(self.url, store_options=self.options) as reader:
            return reader.scan()

    def files(self, store: ObjectStore | None = None) -> VersionedFiles:
        folder, boundary = f"{self.root}/manifest", f"{self.root}/gc/manifest.boundary"
        return VersionedFiles(store or self.store, folder, ".manifest", boundary)

    def republish(self, times: int) -> Version:
        """Publish the latest manifest again as it is."""
        files = self.files()
        version = files.latest()
        for _ in range(times):
            assert version is not None
            version = files.publish(version, version.data)
        assert version is not None
        return version


@pytest.fixture(params=["local", "s3"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    if request.param == "local":
        database = Shared(str(tmp_path / "db"), {})
    else:
        server: S3 = request.getfixturevalue("s3")
        database = Shared(f"s3://{server.bucket()}/some/db", server.options)
    with database.open() as db:
        for key, value in ROWS:
            db.put(key, value)
    return database


def test_the_client_opens_past_leftovers_of_killed_writers(tmp_path: Path) -> None:
    shared = Shared(str(tmp_path / "db"), {})
    with shared.open() as db:
        db.put(*ROWS[0])
    latest = shared.republish(3)
    for to in (1, 2):
        shared.files().advance_boundary(to)  # the second time it replaces, and leaves its lock file
    folder = tmp_path / "db"
    ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    for name in (
        f"manifest/{latest.id + 1:020d}.manifest#123456789",
        f"compactions/{1:020d}.compactions#5",
        f"compacted/{ulid}.sst#42",
        "gc/manifest.boundary#17",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"\x00\x02part")
    assert (folder / "gc" / "manifest.boundary#0").exists()
    assert shared.rows() == ROWS[:1]
    with shared.open() as db:
        db.put(*ROWS[1])
    assert shared.rows() == ROWS[:2]
    assert not [meta.key for meta in shared.store.list(shared.root) if "#" in meta.key]


def test_the_client_reads_what_we_publish_and_we_what_it_publishes(shared: Shared) -> None:
    ours = shared.republish(3)
    admin = Admin(shared.url, store_options=shared.options)
    assert admin.read_manifest().id == ours.id
    assert shared.rows() == ROWS
    admin.create_checkpoint(lifetime_ms=60_000)
    theirs = shared.files().latest()
    assert theirs is not None
    assert theirs.id > ours.id
    with pytest.raises(VersionConflict):
        shared.files().publish(ours, ours.data)


@pytest.mark.parametrize("passed", [1, 3, 8])
def test_an_open_client_that_did_not_look_builds_on_what_we_published(shared: Shared, passed: int) -> None:
    with shared.open(manifest_poll_interval=NEVER) as db:
        ours = shared.republish(passed)
        db.put(b"later", b"row")
        db.flush()
        theirs = shared.files().latest()
        assert theirs is not None
        assert theirs.id > ours.id
    assert shared.rows() == [*ROWS, (b"later", b"row")]


@pytest.mark.parametrize("passed", [1, 3, 8])
def test_a_client_that_slept_through_a_collection_revives_nothing(shared: Shared, passed: int) -> None:
    with shared.open(manifest_poll_interval=NEVER) as db:
        ours = shared.republish(passed)
        files = shared.files()
        boundary = files.advance_boundary(ours.id - 1)
        for version_id in files.ids():
            if version_id <= boundary:
                shared.store.delete(files.key(version_id))
        db.put(b"later", b"row")
        db.flush()
        theirs = shared.files().latest()
        assert theirs is not None
        assert theirs.id > ours.id
    assert shared.rows() == [*ROWS, (b"later", b"row")]


def test_we_sleep_while_the_client_publishes(shared: Shared) -> None:
    sleeper = shared.files()
    base = sleeper.latest()
    assert base is not None
    with shared.open() as db:
        db.put(b"later", b"row")
    with pytest.raises(VersionConflict):
        sleeper.publish(base, base.data)
    latest = sleeper.latest()
    assert latest is not None
    sleeper.publish(latest, latest.data)
    assert shared.rows() == [*ROWS, (b"later", b"row")]
