"""What AddRaftVoter and RemoveRaftVoter share: voters of metadata are not changed here (KIP-853).

As in Kafka with kraft.version 0, which has its voters from its configuration: a request that is well-formed is refused
because of that, any other because of what is wrong with it.
"""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation


def require_voter(request: Any, context: RequestContext, verb: str) -> None:
    """KafkaError unless the client may change voters, and the request is of this cluster and names one."""
    context.require_cluster(AclOperation.alter)
    cluster_id = context.services.metadata.image.cluster_id
    if request.cluster_id not in (None, cluster_id):
        raise KafkaError(
            ErrorCode.inconsistent_cluster_id,
            f'The given id "{request.cluster_id[:200]}" doesn\'t match the cluster id "{cluster_id}"',
        )
    # A directory id of zeros is read as None.
    if request.voter_id < 0 or request.voter_directory_id is None:
        raise KafkaError(ErrorCode.invalid_request, f"{verb} voter request didn't include a valid voter")


def no_reconfiguration(verb: str) -> KafkaError:
    """The reason why no voter is ever added or removed."""
    return KafkaError(
        ErrorCode.unsupported_version, f"Cluster doesn't support {verb} voter because the kraft.version feature is 0"
    )
