"""Index files written while appending equal those that recovery builds from the batches."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.opening import open_log
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.runtime.disk import RealDisk
from tests.example_counts import examples


@settings(max_examples=examples(15), deadline=None)
@given(
    batches=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 90), st.integers(-1, 50)), min_size=1, max_size=40),
    index_interval_bytes=st.sampled_from([0, 100, 4096]),
)
def test_index_files_rebuilt_equal_index_files_built(
    batches: list[tuple[int, int, int]], index_interval_bytes: int
) -> None:
    config = TopicConfig(segment_bytes=1_500, index_interval_bytes=index_interval_bytes)
    with tempfile.TemporaryDirectory(prefix="headwater-log-") as folder:

        def read_indexes(*, clean: bool) -> dict[str, bytes]:
            log = open_log(
                RealDisk(),
                folder,
                TopicPartition("flights", 0),
                uuid.UUID(int=1),
                config,
                was_stopped_cleanly=clean,
                recovery_point=0,
                log_start_offset=0,
                now_ms=100,
            )
            if clean:
                for count, size, timestamp_ms in batches:
                    batch = build_batch([Record(None, bytes(size), timestamp_ms)] * count)
                    log.append_as_leader(batch, leader_epoch=0, now_ms=100)
            log.close()
            return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name.endswith("index")}

        assert read_indexes(clean=True) == read_indexes(clean=False)
