"""Whether the cluster serves the consumer protocol (KIP-848): its feature has a level."""

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.features import GROUP_VERSION


def require_consumer_protocol(context: RequestContext) -> None:
    """Check that group.version is above 0, as Kafka does; KafkaError (unsupported_version)."""
    if context.services.metadata.image.features.level(GROUP_VERSION) < 1:
        raise KafkaError(
            ErrorCode.unsupported_version, "The consumer protocol is not enabled: group.version is finalized at 0."
        )
