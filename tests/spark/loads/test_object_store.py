"""Loads into an object store: Spark writes by Hadoop's `s3a`, Headwater by pyarrow."""

from __future__ import annotations

import uuid

import pytest

from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.file_systems.options import FileSystemOptions
from headwater.pipelines.loads.request import LoadStatus
from headwater.pipelines.loads.verification import verify
from tests import s3
from tests.s3 import S3Server
from tests.spark.loads.conftest import Dock

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("form", ["parquet", "avro", "delta"])
def test_loads_into_an_object_store_continue_and_are_verified(dock: Dock, s3_server: S3Server, form: str) -> None:
    bucket = f"b{uuid.uuid4().hex[:12]}"
    s3_server.make_bucket(bucket)
    hadoop = dock.spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in (s3_server.settings | s3.SPARK).items():
        hadoop.set(name, value)
    dock.files = lambda target: file_system(target, FileSystemOptions(hadoop=s3_server.settings))
    dock.create()
    target = f"s3a://{bucket}/lake/flights"
    # Loads of Avro continue as those of Parquet do; only its writer is another.
    counts = (20, 30) if form != "avro" else (50,)
    for count in counts:
        dock.produce([{"n": n} for n in range(count)])
        loaded = dock.load(target, format=form)
        assert (loaded.error, loaded.outcome) == ("", LoadStatus.LOADED)
    assert dock.load(target, format=form).outcome is LoadStatus.NOTHING_NEW
    found = verify(dock.spark, dock.files(target), target, dock.servers)
    assert (found.problems, found.rows, found.loads) == ((), 50, len(counts))
