"""Archives on a real broker and a real Spark with Delta, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.pipelines.archive.archive_file import parse_archive
from headwater.pipelines.archive.archive_round import RoundOutcome
from headwater.pipelines.archive.marks import ArchiveState
from headwater.pipelines.archive.running import ArchiveRun, RoundFailure
from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.seam.marks import PREFIX
from headwater.pipelines.spark import jvm_delta
from tests.spark.pipelines.conftest import Lab

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Archives:
    """A lab, and a file of archives below its folder `lake`. An `@` in a text is the prefix of this test's topics."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.rounds: list[RoundOutcome] = []

    def run(self, text: str, **more: Any) -> ArchiveRun:
        """A run that is not started."""
        written = text.replace("@", self.lab.prefix)
        folder = str(self.lab.folder)
        specs, loaded = parse_archive(written, "archive.yaml", {}, folder, {}, self._read)
        return ArchiveRun(specs, loaded, self.lab.servers, file_system, on_round=self.rounds.append, **more)

    def _read(self, path: str) -> str:
        return (self.lab.folder / path).read_text()

    def once(self, text: str, **more: Any) -> list[RoundFailure]:
        """Let the tables catch up; the failures."""
        return self.run(text, **more).run_once(lambda: self.lab.spark)

    def caught_up(self, text: str, **more: Any) -> None:
        """Let the tables catch up, without a failure."""
        failures = self.once(text, **more)
        assert failures == []

    def path(self, topic: str) -> Path:
        return self.lab.folder / "lake" / topic.replace("@", self.lab.prefix)

    def frame(self, topic: str) -> DataFrame:
        return self.lab.spark.read.format("delta").load(str(self.path(topic)))

    def rows(self, topic: str, *names: str) -> list[tuple[Any, ...]]:
        """Rows of a table by partition and offset, which come first."""
        found = self.frame(topic).select("_partition", "_offset", *names).collect()
        return sorted((tuple(row) for row in found), key=lambda row: row[:2])

    def state(self, topic: str) -> ArchiveState:
        """The offsets of a table."""
        transaction = jvm_delta.start_delta_transaction(self.lab.spark, str(self.path(topic)))
        marks = jvm_delta.delta_marks(transaction, PREFIX)
        [topic_id] = {app_id.removeprefix(PREFIX).partition("/")[0] for app_id in marks}
        return ArchiveState.of(marks, topic_id)

    def commits(self, topic: str) -> list[list[dict[str, Any]]]:
        """The actions of each commit."""
        log = sorted((self.path(topic) / "_delta_log").glob("*.json"))
        return [[json.loads(line) for line in each.read_text().split("\n") if line] for each in log]


@pytest.fixture
def archives(lab: Lab) -> Archives:
    return Archives(lab)


@pytest.fixture
def archives_on(lab_on: Callable[[str], Lab]) -> Callable[[str], Archives]:
    """Archives of a broker of one's own."""
    return lambda servers: Archives(lab_on(servers))


@pytest.fixture
def spark(delta_spark: SparkSession) -> SparkSession:
    return delta_spark
