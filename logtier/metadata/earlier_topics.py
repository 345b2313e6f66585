"""Topics as stored before partition states were: the topic's node held the replicas, and no state was kept.

`/brokers/topics/<name>` was `{"version":3,"topic_id":...,"partitions":{"0":[1],...}}`.
"""

from typing import Final
from uuid import UUID

import orjson

from headwater.logtier.metadata.paths import CorruptNodeError, topic_path
from headwater.logtier.metadata.store import Create, Operation, SetData
from headwater.logtier.metadata.topic_nodes import create_topic, first_partition_state
from headwater.logtier.protocol import uuids

_VERSION: Final = 3


def convert_topic(name: str, data: bytes, leader_epoch: int) -> list[Operation]:
    """Return the operations that give an earlier topic's node the present form; none for a node of the present form.

    Args:
        leader_epoch: The epoch of its partitions, above all that an earlier version has used: the controller's.

    Raises:
        CorruptNodeError: The data is not that of a topic.
    """
    path = topic_path(name)
    try:
        fields = orjson.loads(data)
        if fields["version"] != _VERSION:
            return []
        topic_id, replicas = _decoded(fields)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        raise CorruptNodeError(path, data) from None
    partitions = [first_partition_state(brokers, leader_epoch) for brokers in replicas]
    first, *chunks = create_topic(name, topic_id, partitions)
    assert isinstance(first, Create)
    return [SetData(path, first.data), *chunks]


def _decoded(fields: dict[str, object]) -> tuple[UUID, list[tuple[int, ...]]]:
    partitions = fields["partitions"]
    if not isinstance(partitions, dict) or not partitions:
        raise ValueError(partitions)
    replicas = [tuple(partitions[str(index)]) for index in range(len(partitions))]
    if not all(replicas):
        raise ValueError(replicas)
    return uuids.from_text(str(fields["topic_id"])), replicas
