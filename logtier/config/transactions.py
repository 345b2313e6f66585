"""The configs of transactions: a part of the broker's table (see `broker`)."""

from dataclasses import dataclass

from headwater.logtier.config.definition import ConfigType, at_least, config
from headwater.logtier.config.group_protocol import GroupProtocolConfig


@dataclass(frozen=True, slots=True, eq=False)
class TransactionConfig(GroupProtocolConfig):
    """What `BrokerConfig` has of producers' transactions."""

    add_partitions_to_txn_retry_backoff_max_ms: int = config(
        ConfigType.INT,
        100,
        "How long the broker itself tries to add a partition to a transaction; then the producer is told to.",
        at_least(0),
    )
    add_partitions_to_txn_retry_backoff_ms: int = config(
        ConfigType.INT,
        20,
        "Wait before a partition is added again to a transaction whose predecessor is still being ended.",
        at_least(1),
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = config(
        ConfigType.INT, 10_000, "How often it is looked for transactions that are open for too long.", at_least(1)
    )
    transaction_max_timeout_ms: int = config(
        ConfigType.INT,
        900_000,
        "Longest transaction.timeout.ms a producer may ask for: an open transaction holds back read_committed readers.",
        at_least(1),
    )
    transaction_partition_verification_enable: bool = config(
        ConfigType.BOOLEAN,
        True,
        "Whether the coordinator is asked if a transaction includes a partition, before its first records there.",
        dynamic=True,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = config(
        ConfigType.INT, 3_600_000, "How often it is looked for transactional ids that have expired.", at_least(1)
    )
    transaction_state_log_min_isr: int = config(
        ConfigType.INT,
        1,  # Kafka's default is 2, which a cluster of one cannot give
        "min.insync.replicas of __transaction_state.",
        at_least(1),
    )
    transaction_state_log_num_partitions: int = config(
        ConfigType.INT, 50, "Partitions of __transaction_state; fixed once it exists.", at_least(1)
    )
    transaction_state_log_replication_factor: int = config(
        ConfigType.SHORT,
        1,  # Kafka's default is 3, which a cluster of one cannot give
        "Replicas of __transaction_state.",
        at_least(1),
    )
    transaction_state_log_segment_bytes: int = config(
        ConfigType.INT, 104_857_600, "Segment size of __transaction_state.", at_least(1)
    )
    transactional_id_expiration_ms: int = config(
        ConfigType.INT,
        604_800_000,
        "How long a transactional id is remembered that has no open transaction and is not used.",
        at_least(1),
    )
