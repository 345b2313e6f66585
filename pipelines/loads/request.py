"""One topic's load, as it was asked for; and how it ended. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.offsets.planning import Wanted
from headwater.pipelines.loads.offsets.ranges import size, to_json
from headwater.pipelines.loads.rows import PartitionColumn
from headwater.pipelines.loads.targets.manifest import Manifest

__all__ = ["LoadOutcome", "LoadRequest", "LoadStatus", "target_of"]


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A load.

    Attributes:
        target: The folder or table, an absolute path or a URL.
        id: The load's name; '' for one made of topic and range.
        replace: The id of the load to replace; '' for none.
        wait_s: How long to wait for another load into the target.
        headers: Whether a raw topic's rows have the column `headers`.
    """

    topic: str
    target: str
    format: str
    wanted: Wanted
    partitions: tuple[PartitionColumn, ...] = ()
    id: str = ""
    replace: str = ""
    merge_schema: bool = False
    headers: bool = False
    wait_s: float = 0.0


class LoadStatus(Enum):
    """How a load ended."""

    LOADED = "loaded"
    #: An earlier run of the same load has loaded its range.
    ALREADY_LOADED = "already loaded"
    NOTHING_NEW = "nothing new"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The end of a load. `is_user_error`: what was asked for cannot be done, and a repetition changes nothing."""

    topic: str
    target: str
    outcome: LoadStatus
    manifest: Manifest | None = None
    error: str = ""
    is_user_error: bool = False
    seconds: float = 0.0

    def value(self) -> dict[str, Any]:
        """The outcome as JSON values."""
        found: dict[str, Any] = {"topic": self.topic, "target": self.target, "outcome": self.outcome.value}
        if self.manifest is not None:
            plan = self.manifest.plan
            found |= {
                "id": plan.id,
                "rows": self.manifest.rows,
                "refused": self.manifest.refused,
                "late": self.manifest.late,
                "offsets": to_json(plan.ranges),
                "gaps": to_json(plan.gaps),
                "files": len(self.manifest.files),
                "bytes": sum(file.size for file in self.manifest.files),
            }
        if self.error:
            found["error"] = self.error
        return found | {"seconds": round(self.seconds, 3)}

    def __str__(self) -> str:
        """The outcome as a line."""
        if self.outcome is LoadStatus.FAILED:
            return f"{self.topic}: {self.error}"
        if self.manifest is None:
            return f"{self.topic}: nothing new for {self.target}"
        plan = self.manifest.plan
        refused = f", {self.manifest.refused:,} of them could not be decoded" if self.manifest.refused else ""
        late = f", {self.manifest.late:,} of them late" if self.manifest.late else ""
        gaps = f"; {size(plan.gaps):,} offsets were gone by retention" if plan.gaps else ""
        done = "is loaded already" if self.outcome is LoadStatus.ALREADY_LOADED else f"loaded in {self.seconds:,.1f} s"
        return f"{self.topic}: {plan.id} {done}: {self.manifest.rows:,} rows{refused}{late} in {self.target}{gaps}"


def target_of(url: str, topic: str, topics: int) -> str:
    """A topic's target: the URL with `{topic}` replaced. Raises LoadError if topics would share one.

    >>> target_of("hdfs://nn/lake/{topic}", "flights", 2), target_of("/lake/flights/", "flights", 1)
    ('hdfs://nn/lake/flights', '/lake/flights')
    """
    if "{topic}" not in url and topics > 1:
        raise LoadError(f"{topics} topics cannot share the target {url}: name it with {{topic}}, as /lake/{{topic}}")
    target = url.replace("{topic}", topic)
    if re.search(r"[*?\[\]{}\\]", target):
        raise LoadError(f"{target}: Spark takes * ? [ ] {{ }} and \\ in a path for a pattern: name another target")
    if not re.sub(r"^[a-z0-9]+:(//[^/]*)?", "", target).strip("/"):
        raise LoadError(f"{target} is the root of a file system: name a folder")
    return target.rstrip("/")
