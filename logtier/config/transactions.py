"""Configs of transactions, a part of the broker's table (see `broker`)."""

from dataclasses import dataclass

from headwater.logtier.config.definition import ConfigType, at_least, config
from headwater.logtier.config.group_protocol import GroupProtocolConfig


@dataclass(frozen=True, slots=True, eq=False)
class TransactionConfig(GroupProtocolConfig):
    """Configs of the transaction coordinator and of transactional produce requests."""

    add_partitions_to_txn_retry_backoff_max_ms: int = config(
        ConfigType.INT,
        100,
        "Maximum time for which the broker retries to add a partition to a transaction; then the producer retries.",
        at_least(0),
    )
    add_partitions_to_txn_retry_backoff_ms: int = config(
        ConfigType.INT,
        20,
        "Pause before the broker retries to add a partition while the previous transaction is still completing.",
        at_least(1),
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = config(
        ConfigType.INT, 10_000, "Interval between checks for transactions beyond their timeout.", at_least(1)
    )
    transaction_max_timeout_ms: int = config(
        ConfigType.INT,
        900_000,
        "Maximum transaction.timeout.ms of a producer; an open transaction blocks read_committed consumers.",
        at_least(1),
    )
    transaction_partition_verification_enable: bool = config(
        ConfigType.BOOLEAN,
        True,
        "Whether the broker verifies with the coordinator that a partition belongs to the transaction before the "
        "first append.",
        dynamic=True,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = config(
        ConfigType.INT, 3_600_000, "Interval between checks for expired transactional ids.", at_least(1)
    )
    transaction_state_log_min_isr: int = config(
        ConfigType.INT,
        1,  # Kafka's default is 2, which a cluster of one cannot give
        "min.insync.replicas of __transaction_state.",
        at_least(1),
    )
    transaction_state_log_num_partitions: int = config(
        ConfigType.INT, 50, "Number of partitions of __transaction_state; fixed at its creation.", at_least(1)
    )
    transaction_state_log_replication_factor: int = config(
        ConfigType.SHORT,
        1,  # Kafka's default is 3, which a cluster of one cannot give
        "Replication factor of __transaction_state.",
        at_least(1),
    )
    transaction_state_log_segment_bytes: int = config(
        ConfigType.INT, 104_857_600, "Segment size of __transaction_state.", at_least(1)
    )
    transactional_id_expiration_ms: int = config(
        ConfigType.INT,
        604_800_000,
        "Time without use after which a transactional id without an open transaction expires.",
        at_least(1),
    )
