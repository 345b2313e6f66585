"""One line for each access that was denied, in Kafka's words, on the logger that Kafka's own configurations name."""

import logging

from logtier.security.operations import AclOperation, ResourceType

logger = logging.getLogger("kafka.authorizer.logger")


def log_denial(
    principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str, request: str
) -> None:
    """Say who was denied what. Names come from clients: they are cut, and what is not printable is escaped."""
    logger.info(
        "Principal = %s is Denied operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s",
        _shown(principal),
        operation.name.upper(),
        host,
        resource_type.name.capitalize(),
        _shown(name),
        request,
    )


def log_more_denials(principal: str, host: str, request: str) -> None:
    """Say that a request was denied more than is told one by one."""
    logger.info(
        "Principal = %s is Denied more from host = %s for request = %s; the rest of this request is not listed",
        _shown(principal),
        host,
        request,
    )


def _shown(text: str) -> str:
    return text[:249] if text.isprintable() else repr(text[:249])
