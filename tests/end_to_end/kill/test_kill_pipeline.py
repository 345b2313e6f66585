"""kill -9 of a pipeline's driver, process group and all, in each window of a micro-batch and at random; of the broker.

Whatever is killed: the output topics, read with read_committed, the dead letters and the Delta tables hold exactly what
the source has, each key in the source's order. A driver that was thought dead is fenced when it comes back. KILL_ROUNDS
and KILL_SEED set how often and when; a run of the suite takes the windows that hurt most. One life of the pipeline
sees all of it: each run recovers from what the one before it left.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.kill.killed_processes import END_S, ended, wait_until
from tests.end_to_end.kill.numbers_pipeline import NumbersPipeline
from tests.stopped_process import is_stopped

if TYPE_CHECKING:
    from tests.conftest import StartBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

ROUNDS = int(os.environ.get("KILL_ROUNDS") or 1)
SEED = int(os.environ.get("KILL_SEED") or random.SystemRandom().randrange(2**32))

# In the order of a micro-batch. `log entry` is `tables_written` with the table's last commit taken away afterwards: the
# Parquet files are there, and nothing says so.
WINDOWS = ("start", "begun", "computed", "log entry", "tables_written", "transaction_open", "records_sent", "committed",
           "done", "commits")  # fmt: skip
#: The driver that is frozen leaves the records of an open transaction, as one that is killed at `records_sent`.
HURTING = ("log entry", "committed")


class World(NumbersPipeline):
    """The pipeline and its only broker."""

    def __init__(self, folder: Path, start_broker: StartBroker) -> None:
        self._start_broker = start_broker
        self.broker = start_broker(folder / "data")
        super().__init__(folder, self.broker.address)

    def restart_broker(self) -> None:
        """Ends it without warning, and starts it again."""
        port = self.broker.port
        self.broker.kill()
        self.broker = self._start_broker(self.folder / "data", port)


@pytest.fixture
def world(start_broker: StartBroker, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, start_broker)
    yield made
    made.close()


def take_away_last_commit(table: Path) -> None:
    """As if the driver had died between the Parquet files and the log entry."""
    last = max((table / "_delta_log").glob("*.json"))
    last.unlink()
    for leftover in (table / "_delta_log").glob(f".{last.name}*"):
        leftover.unlink()
    for leftover in (table / "_delta_log").glob(f"{last.stem}*.crc"):
        leftover.unlink()


def test_drivers_killed_in_windows_and_at_random_frozen_ones_and_killed_brokers_lose_and_double_nothing(
    world: World,
) -> None:
    print(f"\nKILL_SEED={SEED} KILL_ROUNDS={ROUNDS}")
    world.produce(600)
    kill_in_windows(world, HURTING if len(WINDOWS) > ROUNDS else WINDOWS)
    zombie = freeze(world)
    state = world.folder / "state-elsewhere"
    shutil.copytree(world.state, state)

    rng = random.Random(SEED)
    killed_brokers = 0
    started_s = time.monotonic()
    for number in range(ROUNDS):
        process = world.start("--continuous", state=state)
        committed = threading.Event()
        reader = threading.Thread(target=drain, args=(process, committed))
        reader.start()
        # Starting Spark takes longer than what is to be hit.
        assert committed.wait(END_S), "no batch was committed"
        if number == 0:
            assert_fenced(zombie)
        for _ in range(3):
            world.produce(rng.randrange(20, 120))
            time.sleep(rng.uniform(0.0, 1.5))
        if number == 0 or rng.random() < 0.3:
            world.restart_broker()
            killed_brokers += 1
            time.sleep(rng.uniform(0.0, 3.0))
        assert process.poll() is None, "the run ended by itself"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join()
    code, _, err = ended(world.start(state=state))
    assert code == 0, err
    seconds = time.monotonic() - started_s
    print(f"{ROUNDS} drivers and {killed_brokers} brokers killed, {world.produced} records, {seconds:.0f} s")
    assert world.faults() == []


def kill_in_windows(world: World, windows: Sequence[str]) -> None:
    """Each run takes up what the one before it left, and is killed in the next window."""
    reached = []
    for window in windows:
        step = "tables_written" if window == "log entry" else window
        code, out, err = world.run("--stage", "first", "--at", step)
        assert code == -signal.SIGKILL, f"{window}: the run ended with {code}\n{out}{err}"
        reached.append((window, out.strip().splitlines()[-1:]))
        if window == "log entry":
            take_away_last_commit(world.folder / "lake" / "first")
    print(f"killed at {reached}")


def freeze(world: World) -> subprocess.Popen[str]:
    """A driver that sends the records of a batch, and then stands still, as in a long pause of its machine."""
    zombie = world.start("--stage", "first", "--at", "records_sent", "--signal", "SIGSTOP")
    wait_until(lambda: is_stopped(zombie.pid), "the driver did not come to its step")
    return zombie


def assert_fenced(zombie: subprocess.Popen[str]) -> None:
    """A driver that was thought dead comes back when another has committed its batch."""
    os.killpg(zombie.pid, signal.SIGCONT)
    code, _, err = ended(zombie)
    assert code == 1
    assert "another run of it has taken over" in err


def drain(process: subprocess.Popen[str], committed: threading.Event) -> None:
    """Reads what a run prints; `committed` is set by the first batch that the first stage commits, or the run's end."""
    assert process.stdout is not None
    for line in process.stdout:
        words = line.split()
        if words[:2] == ["step", "first"] and words[-1] == "committed":
            committed.set()
    committed.set()
