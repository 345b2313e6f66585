"""Logs each denied access in Kafka's format, on the logger named by Kafka's configurations."""

import logging

from headwater.logtier.security.operations import AclOperation, ResourceType

logger = logging.getLogger("kafka.authorizer.logger")


def log_denial(
    principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str, request: str
) -> None:
    """Log a denied operation. Names come from clients: they are truncated, and unprintable characters are escaped."""
    logger.info(
        "Principal = %s is Denied operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s",
        shown(principal),
        operation.name.upper(),
        host,
        resource_type.name.capitalize(),
        shown(name),
        request,
    )


def log_more_denials(principal: str, host: str, request: str) -> None:
    """Log that further denials of a request are not listed."""
    logger.info(
        "Principal = %s is Denied further resources from host = %s for request = %s; they are not listed",
        shown(principal),
        host,
        request,
    )


def shown(text: str, characters_max: int = 249) -> str:
    r"""Make a client's text safe for a log line: truncated, and escaped if it is not printable.

    >>> shown("orders"), shown("orders\nall is well"), shown("x" * 1000) == "x" * 249
    ('orders', "'orders\\nall is well'", True)
    """
    kept = text[:characters_max]
    return kept if kept.isprintable() else repr(kept)
