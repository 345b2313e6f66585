"""The checks find planted bugs: each is one mistake that others have made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headwater.logtier.group.persistence.replay import GroupReplay
from headwater.logtier.log.durability import Durability
from headwater.logtier.log.log import Log
from headwater.logtier.log.producers.producer_state import ProducerStates
from headwater.logtier.replication.partition import Partition
from headwater.logtier.runtime.disk import File
from tests.simulation.faults import Fault
from tests.simulation.run import run
from tests.simulation.simulated_disk import SimulatedDisk

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS_MAX = 6
DURATION_S = 12.0


def acknowledged_before_it_is_synced(patch: pytest.MonkeyPatch) -> None:
    write = Log._write

    def without_flush(self: Log, *arguments: Any) -> None:
        write(self, *arguments)

    patch.setattr(Log, "_write", without_flush)


def names_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    """KAFKA-3968: the records of a new segment are on the device, its name is not."""
    patch.setattr(Durability, "add_names_in", lambda *_: None)


def producers_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerStates, "restore", lambda *_: None)
    patch.setattr(ProducerStates, "replay", lambda *_: None)


def high_watermark_above_the_log_end(patch: pytest.MonkeyPatch) -> None:
    appended = Partition.appended

    def too_far(self: Partition[Any]) -> bool:
        has_risen = appended(self)
        self.high_watermark += 1
        return has_risen

    patch.setattr(Partition, "appended", too_far)


def a_retry_is_appended_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerStates, "check", lambda *_, **__: None)


def offsets_are_not_loaded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupReplay, "_apply_offset", lambda *_: None)


def a_sync_that_fails_counts_as_done(patch: pytest.MonkeyPatch) -> None:
    sync = SimulatedDisk.fsync_in_background

    def nothing(self: SimulatedDisk, files: list[File], directories: tuple[str, ...] = ()) -> Any:
        return sync(self, [], directories)

    patch.setattr(SimulatedDisk, "fsync_in_background", nothing)


PLANTS: dict[Plant, str] = {
    acknowledged_before_it_is_synced: "was acknowledged at offset",
    names_are_not_synced: "was acknowledged at offset",
    producers_are_forgotten: "the producers are",
    high_watermark_above_the_log_end: "high watermark",
    a_retry_is_appended_again: "sequence",
    offsets_are_not_loaded: "has offset -1",
    a_sync_that_fails_counts_as_done: "was acknowledged at offset",
}
FAULTS = [
    Fault(at_s, kind, 0.5, 0.9)
    for at_s, kind in ((2.0, "power_loss"), (4.0, "reset"), (6.0, "crash"), (8.0, "power_loss"))
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = []
    for seed in range(SEEDS_MAX):
        violation = run(seed, DURATION_S, FAULTS).violation
        if violation is not None:
            found.append(violation)
            if PLANTS[plant] in violation:
                return
    pytest.fail(f"not found: {found}")
