"""A child process of the kill tests: publishes files, and ends its own process group at a given moment.

    python publish_driver.py PATH BOOTSTRAP TOPIC... [--transaction-rows N] [--at STEP] [--nth N] [--signal NAME]
        [--wait]

The files are published to one topic after the other, whether or not a publish fails; with --wait, to the last one after
a line of standard input. STEP is a step of a publish
(headwater.pipelines.publishing.publisher.OnStep); at its N-th occurrence in the last topic's publish the whole group
gets the signal, SIGKILL by default. Prints `step TOPIC STEP` for each, and each result as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial

from headwater.pipelines.publishing.opened_source import accessible_files, named_source
from headwater.pipelines.publishing.publisher import publish
from headwater.pipelines.publishing.request import PublishRequest
from headwater.pipelines.publishing.topic_declaration import declared_topic
from headwater.pipelines.spark.session import close_session, open_session

#: Small, and with so few tasks that one process after the other starts fast.
SPARK = {"spark.driver.memory": "1g", "spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"}


class Silent:
    """Watches a publish, and shows nothing."""

    def reading(self, size: int) -> None:
        pass

    def phase(self, name: str) -> None:
        pass

    @contextlib.contextmanager
    def sending(self, rows: int, part: int, parts: int) -> Iterator[None]:
        yield


def main() -> int:
    """Publish to the end, or to the moment at which the group is ended; the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("bootstrap")
    parser.add_argument("topics", nargs="+")
    parser.add_argument("--transaction-rows", type=int, default=None)
    parser.add_argument("--at", default="")
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--signal", default="SIGKILL")
    parser.add_argument("--wait", action="store_true")
    given = parser.parse_args()
    seen: Counter[str] = Counter()
    code = 0

    def on_step(topic: str, step: str) -> None:
        print(f"step {topic} {step}", flush=True)
        if topic != given.topics[-1]:
            return
        seen[step] += 1
        if step == given.at and seen[step] == given.nth:
            os.killpg(0, signal.Signals[given.signal])

    with tempfile.TemporaryDirectory() as folder:
        spark = open_session("killed", os.path.join(folder, "spark.log"), SPARK)
        try:
            for topic in given.topics:
                if given.wait and topic == given.topics[-1]:
                    sys.stdin.readline()
                asked = PublishRequest(
                    given.path, topic, "id", is_split=True, transaction_rows=given.transaction_rows, order_by=("n",)
                )
                request = named_source(asked, accessible_files(given.path))
                declared = declared_topic(request, {}, None, None)
                try:
                    told = publish(spark, request, declared, given.bootstrap, Silent(), partial(on_step, topic))
                except Exception as error:  # noqa: BLE001 - the test shows it
                    print(f"{topic}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    code = 1
                    continue
                counts = {"written": told.written, "rows": told.rows, "transactions": told.transactions}
                print(json.dumps({"topic": topic} | counts), flush=True)
        finally:
            close_session()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
