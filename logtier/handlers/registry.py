"""Every API this broker answers, by key.

An API is added by writing its module and naming it here; ApiVersions, the dispatcher and docs/not_implemented.md's test
follow.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Final

from logtier.handlers import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    produce,
    sync_group,
)

HANDLERS: Final[Mapping[int, ModuleType]] = {
    module.API_KEY: module
    for module in (
        alter_configs,
        api_versions,
        create_partitions,
        create_topics,
        delete_groups,
        delete_topics,
        describe_cluster,
        describe_configs,
        describe_groups,
        fetch,
        find_coordinator,
        heartbeat,
        incremental_alter_configs,
        init_producer_id,
        join_group,
        leave_group,
        list_groups,
        list_offsets,
        metadata,
        offset_commit,
        offset_delete,
        offset_fetch,
        produce,
        sync_group,
    )
}


def advertised_versions() -> dict[int, tuple[int, int]]:
    """First and last version of every API, as ApiVersions tells them."""
    return {key: getattr(module, "ADVERTISED_VERSIONS", module.VERSIONS) for key, module in HANDLERS.items()}
