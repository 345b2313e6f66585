from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.replication.replicated_node import Make, ReplicatedNode


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[ReplicatedNode] = []

    def make_node(**how: Any) -> ReplicatedNode:
        made.append(ReplicatedNode(tmp_path / "data", **how))
        return made[-1]

    yield make_node
    for node in made:
        node.kill()
