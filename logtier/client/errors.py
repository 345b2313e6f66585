"""Typed errors of this client."""

from __future__ import annotations

__all__ = [
    "AbortableTransactionError",
    "AuthenticationError",
    "BrokerConnectionError",
    "BrokerError",
    "ClientError",
    "DeliveryTimeoutError",
    "InvalidResponseError",
    "LogTruncationError",
    "OffsetOutOfRangeError",
    "ProducerFencedError",
    "RequestTimeoutError",
    "UnknownPartitionError",
    "UnknownTopicError",
    "UnsupportedMechanismError",
    "UnsupportedVersionError",
    "broker_error",
    "error_name",
    "is_retriable",
]

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
NOT_LEADER_OR_FOLLOWER = 6
REPLICA_NOT_AVAILABLE = 9
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
DUPLICATE_SEQUENCE_NUMBER = 46
INVALID_PRODUCER_EPOCH = 47
PRODUCER_FENCED = 90
UNSUPPORTED_VERSION = 35
# Of a topic, of the cluster.
AUTHORIZATION_FAILURES = frozenset({29, 31})


class ClientError(Exception):
    """The base of every error this client raises."""


class BrokerConnectionError(ClientError):
    """A broker could not be reached, or closed the connection."""


class AuthenticationError(ClientError):
    """Broker or client rejects the other's certificate, mechanism or password. Retries do not help."""


class UnsupportedMechanismError(AuthenticationError):
    """A broker does not authenticate by the client's SASL mechanism."""


class RequestTimeoutError(ClientError):
    """A broker did not respond to a request in time."""


class DeliveryTimeoutError(ClientError):
    """A record batch was not delivered within `delivery.timeout.ms`."""


class InvalidResponseError(ClientError):
    """A broker's response violates the protocol: a bad length, a wrong correlation id, a truncated body."""


class UnsupportedVersionError(ClientError):
    """The broker and this client have no version of an API in common."""


class UnknownTopicError(ClientError):
    """The cluster has no such topic."""


class UnknownPartitionError(ClientError):
    """The topic has no such partition."""


class BrokerError(ClientError):
    """A broker's response has an error code of the protocol."""

    def __init__(self, code: int, what: str, detail: str | None = None) -> None:
        self.code = code
        self.name = error_name(code)
        self.retriable = is_retriable(code)
        super().__init__(f"{what}: the broker answered {self.name} ({code})" + (f": {detail}" if detail else ""))


class OffsetOutOfRangeError(BrokerError):
    """The requested offset is not in the log: retention has removed it, or the topic was recreated."""


class LogTruncationError(ClientError):
    """Records up to a position are no longer in the log: an unclean election, or a broker that lost its disk.

    Attributes:
        divergent_offset: The first offset whose record is lost; None if the leader does not know.
    """

    def __init__(
        self, topic: str, partition: int, offset: int, leader_epoch: int, divergent_offset: int | None
    ) -> None:
        self.divergent_offset = divergent_offset
        lost = f"its records before offset {offset}"
        if divergent_offset is not None:
            lost = f"its records from offset {divergent_offset} to {offset - 1}"
        super().__init__(
            f"{topic}-{partition} was truncated: {lost}, which were there in leader epoch {leader_epoch}, are lost"
        )


class AbortableTransactionError(BrokerError):
    """A transaction cannot be committed; the producer aborts it and may begin another one."""


class ProducerFencedError(BrokerError):
    """A newer producer took over this producer id."""


def error_name(code: int) -> str:
    """Returns Kafka's name of an error code.

    >>> error_name(3)
    'UNKNOWN_TOPIC_OR_PARTITION'
    >>> error_name(9999)
    'UNKNOWN_ERROR_CODE'
    """
    from kio.schema.errors import ErrorCode

    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return "UNKNOWN_ERROR_CODE"


def is_retriable(code: int) -> bool:
    """Whether Kafka classifies an error code as retriable: the same request may succeed later.

    >>> is_retriable(6), is_retriable(1)
    (True, False)
    """
    from kio.schema.errors import ErrorCode

    try:
        return bool(ErrorCode(code).retriable)
    except ValueError:
        return False


def broker_error(code: int, what: str, detail: str | None = None) -> BrokerError:
    """Returns the typed error for a code; `what` names the request, topic and partition."""
    if code == OFFSET_OUT_OF_RANGE:
        return OffsetOutOfRangeError(code, what, detail)
    if code in (INVALID_PRODUCER_EPOCH, PRODUCER_FENCED):
        return ProducerFencedError(code, what, detail)
    return BrokerError(code, what, detail)
