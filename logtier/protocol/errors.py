"""Errors sent to a client as a Kafka error code."""

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "KafkaError", "ProtocolViolationError"]


class KafkaError(Exception):
    """An error reported to a client by an error code: invalid input, or a state that the client must await or correct.

    Args:
        code: The protocol's error code (Kafka protocol guide, "Error Codes").
        message: The explanation for users; logged, and sent if the response has a message field.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message

    def without_traceback(self) -> "KafkaError":
        """Return the same error without a traceback, to be stored beyond the request.

        A raised error refers to every frame it passed through, as do the errors it was raised from: a frame that stores
        it forms a cycle with it, and the bytes of the request stay in memory until the next garbage collection.
        """
        return KafkaError(self.code, self.message)


class ProtocolViolationError(Exception):
    """The bytes are not a valid Kafka request, or the request cannot be answered: the connection is closed."""
