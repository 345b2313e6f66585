"""AddRaftVoter: adds a voter to the metadata quorum (KIP-853); not supported."""

from typing import Any

from headwater.logtier.handlers.cluster.raft_voters import no_reconfiguration, require_voter
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

API_KEY = 80
VERSIONS = (0, 0)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Reject the request: the controller is a quorum of one."""
    require_voter(request, context, "Add")
    if not request.listeners:
        raise KafkaError(ErrorCode.invalid_request, "Add voter request didn't include an endpoint of the voter")
    raise no_reconfiguration("adding")
