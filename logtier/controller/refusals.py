"""What a client is told of an error of a command, and what the log says of it."""

import logging

from headwater.logtier.controller.failure_log import FailureLog
from headwater.logtier.metadata.paths import CorruptNodeError
from headwater.logtier.metadata.store import MetadataStoreError
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

CommandError = KafkaError | OSError | MetadataStoreError | CorruptNodeError
"""Errors of a command that its client gets."""


class Refusals:
    """Turns errors of commands into those of the protocol; an error that is repeated is logged once."""

    def __init__(self) -> None:
        self._failures = FailureLog(log)

    def refusal(self, error: CommandError, *, is_deposed: bool) -> KafkaError:
        """Return the error for the client. `is_deposed`: this broker may not be the controller any more."""
        if isinstance(error, KafkaError):
            return error
        if isinstance(error, CorruptNodeError):
            # No code that clients retry: the node stays as it is until an administrator mends it.
            self._failures.failed(logging.ERROR, f"a change of metadata failed: {error}; {error.remedy}")
            return KafkaError(ErrorCode.unknown_server_error, "The metadata is damaged: see the controller's log.")
        if isinstance(error, OSError):
            # The change is durable, but a log could not be created or changed; the next start applies it.
            self._failures.failed(logging.ERROR, f"a change of metadata could not be applied on disk: {error}")
            return KafkaError(ErrorCode.kafka_storage_error, error.strerror or str(error))
        if is_deposed:
            # Whether the change took effect is in the list that the next controller reads.
            return KafkaError(ErrorCode.not_controller, f"This broker is no longer the controller: {error}")
        self._failures.failed(logging.ERROR, f"a change of metadata failed: {error}")
        return KafkaError(ErrorCode.kafka_storage_error, str(error))

    def succeeded(self) -> None:
        """Note that a command has ended well."""
        self._failures.succeeded()
