"""The handlers of all supported APIs, by key.

To add an API, write its module and list it here; ApiVersions, the dispatcher and the test of docs/not_implemented.md
follow.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Final

from headwater.logtier.handlers.brokers import (
    allocate_producer_ids,
    alter_partition,
    assign_replicas_to_dirs,
    broker_heartbeat,
    envelope,
)
from headwater.logtier.handlers.cluster import (
    add_raft_voter,
    api_versions,
    describe_cluster,
    describe_quorum,
    remove_raft_voter,
    unregister_broker,
    update_features,
)
from headwater.logtier.handlers.configs import (
    alter_configs,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from headwater.logtier.handlers.groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from headwater.logtier.handlers.quotas import (
    alter_client_quotas,
    describe_client_quotas,
)
from headwater.logtier.handlers.records import (
    delete_records,
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from headwater.logtier.handlers.security import (
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    delete_acls,
    describe_acls,
    describe_delegation_token,
    describe_user_scram_credentials,
    expire_delegation_token,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
)
from headwater.logtier.handlers.topics import (
    alter_partition_reassignments,
    alter_replica_log_dirs,
    create_partitions,
    create_topics,
    delete_topics,
    describe_log_dirs,
    describe_topic_partitions,
    elect_leaders,
    list_partition_reassignments,
    metadata,
)
from headwater.logtier.handlers.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)

HANDLERS: Final[Mapping[int, ModuleType]] = {
    module.API_KEY: module
    for module in (
        add_raft_voter,
        api_versions,
        describe_cluster,
        describe_quorum,
        remove_raft_voter,
        unregister_broker,
        update_features,
        alter_configs,
        describe_configs,
        incremental_alter_configs,
        list_config_resources,
        consumer_group_describe,
        consumer_group_heartbeat,
        delete_groups,
        describe_groups,
        find_coordinator,
        heartbeat,
        join_group,
        leave_group,
        list_groups,
        offset_commit,
        offset_delete,
        offset_fetch,
        sync_group,
        alter_client_quotas,
        describe_client_quotas,
        delete_records,
        fetch,
        list_offsets,
        offset_for_leader_epoch,
        produce,
        alter_user_scram_credentials,
        create_acls,
        create_delegation_token,
        delete_acls,
        describe_acls,
        describe_delegation_token,
        describe_user_scram_credentials,
        expire_delegation_token,
        renew_delegation_token,
        sasl_authenticate,
        sasl_handshake,
        alter_partition_reassignments,
        alter_replica_log_dirs,
        create_partitions,
        create_topics,
        delete_topics,
        describe_log_dirs,
        describe_topic_partitions,
        elect_leaders,
        list_partition_reassignments,
        metadata,
        add_offsets_to_txn,
        add_partitions_to_txn,
        describe_producers,
        describe_transactions,
        end_txn,
        init_producer_id,
        list_transactions,
        txn_offset_commit,
        write_txn_markers,
    )
}

#: Served on the inter-broker listener of a cluster only, and never listed by ApiVersions.
BETWEEN_BROKERS: Final[Mapping[int, ModuleType]] = {
    module.API_KEY: module
    for module in (allocate_producer_ids, alter_partition, assign_replicas_to_dirs, broker_heartbeat, envelope)
}


def advertised_versions() -> dict[int, tuple[int, int]]:
    """Return first and last version of every API, as reported by ApiVersions."""
    return {key: getattr(module, "ADVERTISED_VERSIONS", module.VERSIONS) for key, module in HANDLERS.items()}
