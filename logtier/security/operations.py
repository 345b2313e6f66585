"""Operations and resource types: the numbers of the protocol (Kafka protocol guide, ACLs)."""

from enum import IntEnum


class AclOperation(IntEnum):
    """An operation; `any` only in filters."""

    unknown = 0
    any = 1
    all = 2
    read = 3
    write = 4
    create = 5
    delete = 6
    alter = 7
    describe = 8
    cluster_action = 9
    describe_configs = 10
    alter_configs = 11
    idempotent_write = 12
    create_tokens = 13
    describe_tokens = 14
    two_phase_commit = 15


class ResourceType(IntEnum):
    """A type of resource; `any` only in filters."""

    unknown = 0
    any = 1
    topic = 2
    group = 3
    cluster = 4
    transactional_id = 5
    delegation_token = 6
    user = 7


#: The only resource of type cluster.
CLUSTER_NAME = "kafka-cluster"
