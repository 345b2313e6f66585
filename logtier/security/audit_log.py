"""One line for each access that was denied, in Kafka's words, on the logger that Kafka's own configurations name."""

import logging

from headwater.logtier.security.operations import AclOperation, ResourceType

logger = logging.getLogger("kafka.authorizer.logger")


def log_denial(
    principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str, request: str
) -> None:
    """Say who was denied what. Names come from clients: they are cut, and what is not printable is escaped."""
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
    """Say that a request was denied more than is told one by one."""
    logger.info(
        "Principal = %s is Denied more from host = %s for request = %s; the rest of this request is not listed",
        shown(principal),
        host,
        request,
    )


def shown(text: str, characters_max: int = 249) -> str:
    r"""What a client said, as it may stand in a line of a log: cut, and escaped where it is not printable.

    >>> shown("orders"), shown("orders\nall is well"), shown("x" * 1000) == "x" * 249
    ('orders', "'orders\\nall is well'", True)
    """
    kept = text[:characters_max]
    return kept if kept.isprintable() else repr(kept)
