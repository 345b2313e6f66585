"""The Spark driver of the part `publish`: rows of Parquet files into a topic as JSON, in one transaction each time.

    python -m tests.bench.spark.publish_client BOOTSTRAP FOLDER --rows N --rounds N

Prints one line of JSON: rows a second of whole publishes (checksums, counting and commit included), and the seconds
from the transaction's begin to the last record and to the commit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.pipelines.publishing.opened_source import accessible_files, named_source
from headwater.pipelines.publishing.publisher import publish
from headwater.pipelines.publishing.request import PublishRequest
from headwater.pipelines.publishing.topic_declaration import declared_topic
from headwater.pipelines.spark.session import close_session, open_session

TOPIC, PARTITIONS, FILES = "published", 6, 8
WARM_ROWS = 100_000
SPARK = {"spark.master": "local[2]", "spark.driver.memory": "3g"}


class Silent:
    """Watches a publish, and shows nothing."""

    def reading(self, size: int) -> None:
        pass

    def phase(self, name: str) -> None:
        pass

    @contextlib.contextmanager
    def sending(self, rows: int, part: int, parts: int) -> Iterator[None]:
        yield


def write_flights(folder: Path, rows: int, first: int) -> Path:
    """Rows like those of flights: eight columns, about 150 bytes as JSON."""
    folder.mkdir()
    for number, ids in enumerate(np.array_split(np.arange(first, first + rows), FILES)):
        table = pa.table(
            {
                "flight": pa.array(ids),
                "carrier": pa.array([f"C{one % 16}" for one in ids]),
                "tail": pa.array([f"N{one % 4043}" for one in ids]),
                "origin": pa.array([("EWR", "JFK", "LGA")[one % 3] for one in ids]),
                "departed": pa.array(1_356_998_400_000_000 + ids * 3_000_000, pa.timestamp("us", "UTC")),
                "delay": pa.array([None if one % 40 == 0 else int(one % 120) - 20 for one in ids], pa.int32()),
                "distance": pa.array(ids % 2_500 * 1.5),
                "cancelled": pa.array(ids % 40 == 0),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    given = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": given.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    sizes = [WARM_ROWS, *[given.rows] * given.rounds]
    folders = [write_flights(given.folder / str(n), rows, n * given.rows) for n, rows in enumerate(sizes)]
    spark = open_session("bench", str(given.folder / "spark.log"), SPARK)
    told: dict[str, list[float]] = {"rows/s": [], "sent after s": [], "committed after s": [], "before s": []}
    try:
        for number, folder in enumerate(folders):
            at: dict[str, float] = {"begin": time.perf_counter()}

            def on_step(step: str, at: dict[str, float] = at) -> None:
                at[step] = time.perf_counter()

            asked = PublishRequest(str(folder), TOPIC, "flight", headers={"carrier": "carrier"})
            request = named_source(asked, accessible_files(str(folder)))
            published = publish(
                spark, request, declared_topic(request, {}, None, None), given.bootstrap, Silent(), on_step
            )
            seconds = time.perf_counter() - at["begin"]
            assert published.written == sizes[number]
            if number:
                told["rows/s"].append(published.written / seconds)
                told["before s"].append(at["transaction_open"] - at["begin"])
                told["sent after s"].append(at["records_sent"] - at["transaction_open"])
                told["committed after s"].append(at["committed"] - at["transaction_open"])
    finally:
        close_session()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
