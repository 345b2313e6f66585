"""A child process of the kill tests: runs a pipeline, and ends its own process group at a given moment.

    python pipeline_driver.py FILE BOOTSTRAP STATE [--continuous] [--stage NAME]... [--at STEP] [--signal NAME]
        [--wait-at STEP]...

STEP is a step of a micro-batch (headwater.pipelines.engine.batch_writing.OnStep) of the first stage that is run; or
`start`, as soon as its checkpoint has an identity; or `commits`, as soon as Spark has committed a further batch there.
At that moment the whole group gets the signal, SIGKILL by default. Prints `step STAGE BATCH STEP` for each step of a
batch. At each step of --wait-at the stage waits for a line of standard input. On SIGUSR1 it writes where each of its
threads is to standard error.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from headwater.pipelines.definition.plan import checkpoint_folder
from headwater.pipelines.engine.runner import Runner, RunOptions
from headwater.pipelines.spark.session import close_session
from headwater.pipelines.validation.pipeline_file import load

POLL_S = 0.0005
#: Small, and with so few tasks that one process after the other starts fast.
SPARK = {
    "spark.driver.memory": "1g",
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}
FILES = ("start", "commits")


def main() -> None:
    """Run the pipeline to its end, or to the moment at which the group is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("bootstrap")
    parser.add_argument("state")
    parser.add_argument("--continuous", action="store_true")
    parser.add_argument("--stage", action="append", default=[])
    parser.add_argument("--at", default="")
    parser.add_argument("--signal", default="SIGKILL")
    parser.add_argument("--wait-at", action="append", default=[])
    given = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)
    loaded = load(given.file, {}, frozenset())
    # A given-up stage ends the run: a test that waits for its steps would wait in vain.
    options = RunOptions(given.bootstrap, given.state, not given.continuous, tuple(given.stage), SPARK, fail_fast=True)
    first = given.stage[0] if given.stage else loaded.pipeline.stages[0].name
    ended = threading.Event()
    printing = threading.Lock()

    def end_group() -> None:
        if not ended.is_set():
            ended.set()
            os.killpg(0, signal.Signals[given.signal])

    def on_step(stage: str, batch: int, step: str) -> None:
        with printing:  # stages run side by side, and print writes a line and its end one after the other
            print(f"step {stage} {batch} {step}", flush=True)
        if stage == first and step == given.at:
            end_group()
        if stage == first and step in given.wait_at:
            sys.stdin.readline()

    if given.at in FILES:
        checkpoint = Path(given.state) / checkpoint_folder(loaded.pipeline.pipeline, first)
        threading.Thread(target=watch, args=(checkpoint, given.at, end_group), daemon=True).start()
    try:
        Runner(loaded, options, lambda topics: None, on_step=on_step, on_event=told).run()
    finally:
        close_session()


def told(event: str) -> None:
    """Pass on what the run tells its user: a restart, a stage that is given up."""
    print(event, file=sys.stderr, flush=True)


def watch(checkpoint: Path, what: str, end_group: Callable[[], None]) -> None:
    """Wait for the file, then end the group."""
    before = committed(checkpoint)
    while not ((checkpoint / "metadata").exists() if what == "start" else committed(checkpoint) - before):
        time.sleep(POLL_S)
    end_group()


def committed(checkpoint: Path) -> set[str]:
    """The batches that Spark has committed."""
    try:
        return {name for name in os.listdir(checkpoint / "commits") if name.isdigit()}
    except FileNotFoundError:
        return set()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # the test shows it
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from error
