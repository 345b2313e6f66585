"""Errors that travel to a client as a Kafka error code."""

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "KafkaError", "ProtocolViolationError"]


class KafkaError(Exception):
    """Something a client is told by an error code: bad input, or a state it has to wait for or mend.

    Args:
        code: The protocol's error code (Kafka protocol guide, "Error Codes").
        message: What a person needs to know; sent where the response has a message field, and logged.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message

    def without_traceback(self) -> "KafkaError":
        """The same error for a holder that outlives the request.

        One that was raised holds every frame that it went through, and so do the errors that it was raised from: a
        frame that keeps it is in a circle with it, and the request's bytes stay until the next garbage collection.
        """
        return KafkaError(self.code, self.message)


class ProtocolViolationError(Exception):
    """Bytes that are no Kafka request, or one we cannot answer: the connection is closed."""
