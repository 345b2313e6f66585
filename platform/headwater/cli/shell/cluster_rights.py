"""Whether the brokers of `headwater up --brokers` may replicate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.cli.shell.errors import CliError

if TYPE_CHECKING:
    from headwater.logtier.metadata.image import MetadataImage

#: Address at which the brokers of one machine reach each other.
HOST = "127.0.0.1"


def check_rights(command: str, broker_config: str, image: MetadataImage | None = None) -> None:
    """Check that the brokers of a cluster may replicate, by the user's properties and the rules there are.

    The brokers connect to each other by the only listener that `headwater up --brokers` gives them, without a login.

    Args:
        command: Which command asks, for the message.
        image: The metadata with the rules; None if there are none yet.

    Raises:
        CliError: The authorizer denies it.
    """
    if not broker_config:
        return
    from headwater.cli.shell.broker_properties import broker_properties, read_properties
    from headwater.logtier.config import BrokerConfig, ConfigError
    from headwater.logtier.metadata.acl_follower import configured_authorizer
    from headwater.logtier.metadata.image import MetadataCache, MetadataImage
    from headwater.logtier.security.operations import CLUSTER_NAME, AclOperation, ResourceType
    from headwater.logtier.security.sasl_session import ANONYMOUS

    try:
        config = BrokerConfig.from_properties(broker_properties(read_properties(broker_config), {}, None, 0, HOST))
    except ConfigError as error:
        raise CliError(command, f"{broker_config}: {error}") from None
    cache = MetadataCache(config)
    cache.publish(image or MetadataImage())
    authorizer = configured_authorizer(cache)
    if authorizer is None or config.bind_endpoints[0].protocol != "PLAINTEXT":
        return
    for operation in (AclOperation.cluster_action, AclOperation.create):
        if not authorizer.is_authorized(ANONYMOUS, HOST, operation, ResourceType.cluster, CLUSTER_NAME):
            raise CliError(
                command,
                f"the authorizer of {broker_config} denies {ANONYMOUS} {operation.name.upper()} on the cluster: so "
                "brokers of `headwater up --brokers` are called, which could not replicate",
                f"add {ANONYMOUS} to super.users first",
            )
