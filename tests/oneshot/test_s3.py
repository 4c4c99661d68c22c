"""A whole run over S3 on HTTP, with the official client on the same bucket."""

from __future__ import annotations

from lithify.engine.spark import SparkEngine
from tests.compacting import compact, dataset_at
from tests.judge.official import Delete, Put, open_db
from tests.s3 import S3


def test_a_database_on_s3_is_compacted_while_its_writer_is_open(s3: S3, spark_engine: SparkEngine) -> None:
    url = f"s3://{s3.bucket()}/some/db"
    model: dict[bytes, bytes] = {}
    with open_db(url, store_options=s3.options) as database:
        for batch in range(5):
            rows = {b"k%05d" % n: b"%d" % batch * 50 for n in range(batch, 3000, 2)}
            model |= rows
            database.write_batch([Put(k, v) for k, v in rows.items()])
            database.write_batch([Delete(b"k%05d" % batch)])
            model.pop(b"k%05d" % batch)
            database.flush()
        dataset = dataset_at(url, store_options=s3.options, max_sst_size=50_000)
        result = compact(dataset, engine=spark_engine)
        assert result.failures == ()
        assert len(result.committed) == 1
        database.put(b"after", b"v")
        database.flush()
    model[b"after"] = b"v"
    with open_db(url, store_options=s3.options) as database:
        assert dict(database.scan()) == model
        assert database.get_many(model) == model
    tree = dataset_at(url, store_options=s3.options).snapshot().root
    assert (len(tree.l0), len(tree.runs)) == (1, 1)
    assert len(tree.runs[0].views) > 1
