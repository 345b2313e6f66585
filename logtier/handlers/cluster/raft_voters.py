"""The common part of AddRaftVoter and RemoveRaftVoter: the voters of the quorum cannot be changed (KIP-853).

As in Kafka with kraft.version 0, whose voters are configured: a valid request is rejected for that reason, an invalid
one for its error.
"""

from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation


def require_voter(request: Any, context: RequestContext, verb: str) -> None:
    """Raise KafkaError unless the client may change voters, and the request has this cluster's id and a voter."""
    context.require_cluster(AclOperation.alter)
    cluster_id = context.services.metadata.image.cluster_id
    if request.cluster_id not in (None, cluster_id):
        raise KafkaError(
            ErrorCode.inconsistent_cluster_id,
            f'The given id "{request.cluster_id[:200]}" doesn\'t match the cluster id "{cluster_id}"',
        )
    # kio reads a directory id of zeros as None.
    if request.voter_id < 0 or request.voter_directory_id is None:
        raise KafkaError(ErrorCode.invalid_request, f"{verb} voter request didn't include a valid voter")


def no_reconfiguration(verb: str) -> KafkaError:
    """Return the error that voters cannot be added or removed."""
    return KafkaError(
        ErrorCode.unsupported_version, f"Cluster doesn't support {verb} voter because the kraft.version feature is 0"
    )
