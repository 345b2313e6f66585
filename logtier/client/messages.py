"""Requests and responses through kio, loaded lazily by (API key, version).

kio's reader is native; its writer is Python, so Fetch and Produce, which carry records, have hand-written codecs
(`fetch_codec`, `produce_codec`).
"""

from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import UnsupportedVersionError

__all__ = ["API_NAMES", "CLIENT_VERSIONS", "ApiKey", "kio_request", "negotiate", "nested"]


class ApiKey:
    """API keys of the requests that this client sends."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    ALTER_PARTITION = 56
    ENVELOPE = 58
    DESCRIBE_PRODUCERS = 61
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    ASSIGN_REPLICAS_TO_DIRS = 73
    DESCRIBE_TOPIC_PARTITIONS = 75


API_NAMES = {
    ApiKey.PRODUCE: "Produce",
    ApiKey.FETCH: "Fetch",
    ApiKey.LIST_OFFSETS: "ListOffsets",
    ApiKey.METADATA: "Metadata",
    ApiKey.OFFSET_COMMIT: "OffsetCommit",
    ApiKey.OFFSET_FETCH: "OffsetFetch",
    ApiKey.API_VERSIONS: "ApiVersions",
    ApiKey.INIT_PRODUCER_ID: "InitProducerId",
    ApiKey.FIND_COORDINATOR: "FindCoordinator",
    ApiKey.JOIN_GROUP: "JoinGroup",
    ApiKey.HEARTBEAT: "Heartbeat",
    ApiKey.LEAVE_GROUP: "LeaveGroup",
    ApiKey.SYNC_GROUP: "SyncGroup",
    ApiKey.DESCRIBE_GROUPS: "DescribeGroups",
    ApiKey.SASL_HANDSHAKE: "SaslHandshake",
    ApiKey.WRITE_TXN_MARKERS: "WriteTxnMarkers",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "OffsetForLeaderEpoch",
    ApiKey.ALTER_PARTITION: "AlterPartition",
    ApiKey.ENVELOPE: "Envelope",
    ApiKey.BROKER_HEARTBEAT: "BrokerHeartbeat",
    ApiKey.ALLOCATE_PRODUCER_IDS: "AllocateProducerIds",
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: "AssignReplicasToDirs",
    ApiKey.CREATE_TOPICS: "CreateTopics",
    ApiKey.ADD_PARTITIONS_TO_TXN: "AddPartitionsToTxn",
    ApiKey.ADD_OFFSETS_TO_TXN: "AddOffsetsToTxn",
    ApiKey.END_TXN: "EndTxn",
    ApiKey.TXN_OFFSET_COMMIT: "TxnOffsetCommit",
    ApiKey.DESCRIBE_CONFIGS: "DescribeConfigs",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "AlterReplicaLogDirs",
    ApiKey.DESCRIBE_LOG_DIRS: "DescribeLogDirs",
    ApiKey.SASL_AUTHENTICATE: "SaslAuthenticate",
    ApiKey.ELECT_LEADERS: "ElectLeaders",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "IncrementalAlterConfigs",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "AlterPartitionReassignments",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "ListPartitionReassignments",
    ApiKey.UNREGISTER_BROKER: "UnregisterBroker",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "DescribeClientQuotas",
    ApiKey.ALTER_CLIENT_QUOTAS: "AlterClientQuotas",
    ApiKey.DESCRIBE_PRODUCERS: "DescribeProducers",
    ApiKey.DESCRIBE_TRANSACTIONS: "DescribeTransactions",
    ApiKey.LIST_TRANSACTIONS: "ListTransactions",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "DescribeTopicPartitions",
}

# Supported versions. Fetch and Produce end before version 13, which replaces topic names by topic ids.
CLIENT_VERSIONS: dict[int, tuple[int, int]] = {
    ApiKey.PRODUCE: (3, 12),
    ApiKey.FETCH: (4, 12),
    ApiKey.LIST_OFFSETS: (1, 8),
    ApiKey.METADATA: (4, 12),
    # From version 5 on the broker decides the retention. Version 10 names topics by id.
    ApiKey.OFFSET_COMMIT: (5, 9),
    # From version 8 on a request names several groups.
    ApiKey.OFFSET_FETCH: (8, 9),
    # Version 6 adds two-phase commits (KIP-939).
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.FIND_COORDINATOR: (4, 6),
    # From version 4 on a member gets its id before it joins (KIP-394): a lost answer leaves no unknown member behind.
    ApiKey.JOIN_GROUP: (4, 9),
    ApiKey.HEARTBEAT: (0, 4),
    # From version 3 on a request names members.
    ApiKey.LEAVE_GROUP: (3, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 5),
    # From version 3 on with the cluster's features. Each connection begins with version 0, which every broker supports.
    ApiKey.API_VERSIONS: (0, 3),
    # After version 0 of the handshake, tokens would follow without request headers.
    ApiKey.SASL_HANDSHAKE: (1, 1),
    ApiKey.WRITE_TXN_MARKERS: (1, 1),
    # From version 2 on with the leader's epoch, and open to consumers.
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    # From version 4 on the broker has defaults for partitions and replicas.
    ApiKey.CREATE_TOPICS: (4, 7),
    # Later versions are for brokers.
    ApiKey.ADD_PARTITIONS_TO_TXN: (3, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    # Version 5, TxnOffsetCommit 5 and Produce 12 belong to transaction.version 2: `transactional_producer` chooses.
    ApiKey.END_TXN: (1, 5),
    ApiKey.TXN_OFFSET_COMMIT: (3, 5),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    # From version 1 on with the kind of election.
    ApiKey.ELECT_LEADERS: (1, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    # From version 1 on a change of the replication factor can be excluded.
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
}


def negotiate(api_key: int, broker_versions: Mapping[int, tuple[int, int]]) -> int:
    """Returns the highest version that the broker and this client share.

    >>> negotiate(ApiKey.FETCH, {1: (4, 18)})
    12
    >>> negotiate(ApiKey.FETCH, {1: (13, 18)})
    Traceback (most recent call last):
    headwater.logtier.client.errors.UnsupportedVersionError: Fetch: the broker speaks versions 13-18, this client 4-12
    """
    low, high = CLIENT_VERSIONS[api_key]
    if api_key not in broker_versions:
        raise UnsupportedVersionError(f"the broker does not offer {API_NAMES[api_key]}")
    broker_low, broker_high = broker_versions[api_key]
    version = min(high, broker_high)
    if version < max(low, broker_low):
        raise UnsupportedVersionError(
            f"{API_NAMES[api_key]}: the broker speaks versions {broker_low}-{broker_high}, this client {low}-{high}"
        )
    return version


@lru_cache(maxsize=64)
def _codec(api_key: int, version: int) -> tuple[Any, Any, Any, Any, bool]:
    from kio.index import load_request_schema, load_response_schema
    from kio.serial import entity_reader, entity_writer

    request_type: Any = load_request_schema(api_key, version)
    response_type: Any = load_response_schema(api_key, version)
    write, read = entity_writer(request_type), entity_reader(response_type)
    return request_type, write, response_type, read, bool(request_type.__flexible__)


def nested(owner: type[Any], field: str) -> Any:
    """Returns the entity type of an array field: callers need no import of kio's module of the version."""
    import typing

    hints = typing.get_type_hints(owner)
    for candidate in typing.get_args(hints[field]):
        for inner in (candidate, *typing.get_args(candidate)):
            if dataclasses.is_dataclass(inner):
                return inner
    raise AssertionError(f"{owner.__name__}.{field} is not an array of entities")


def _build(schema: Any, values: Mapping[str, Any]) -> Any:
    """Builds an entity from plain values: omits fields that the version lacks; mappings become nested entities."""
    known = {field.name for field in dataclasses.fields(schema)}
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            continue
        if isinstance(value, tuple) and value and isinstance(value[0], Mapping):
            inner = nested(schema, name)
            value = tuple(_build(inner, element) for element in value)
        elif isinstance(value, Mapping):
            value = _build(nested(schema, name), value)
        arguments[name] = value
    return schema(**arguments)


def kio_request(api_key: int, version: int, values: Mapping[str, Any]) -> Request[Any]:
    """Builds a request from plain values; the response decodes to kio's entity."""
    from kio.serial.errors import SerialError

    from headwater.logtier.protocol.errors import ProtocolViolationError
    from headwater.logtier.protocol.request_counts import check_counts
    from headwater.logtier.protocol.unknown_tags import without_unknown_tags

    request_type, write, response_type, read, flexible = _codec(api_key, version)
    out = io.BytesIO()
    write(out, _build(request_type, values))

    def decode(body: memoryview) -> Any:
        frame = bytes(body)  # kio reads read-only bytes only
        try:
            check_counts(response_type, frame, 0)
            try:
                entity, _size = read(frame, 0)
            except KeyError:  # an unknown tagged field, of a broker newer than kio's schema
                if not flexible:
                    raise
                entity, _size = read(without_unknown_tags(response_type, frame), 0)
        except (SerialError, ProtocolViolationError, IndexError, KeyError, OverflowError, struct.error) as error:
            raise ValueError(str(error)) from error
        return entity

    return Request(api_key, version, flexible, out.getvalue(), decode, flexible and api_key != ApiKey.API_VERSIONS)
