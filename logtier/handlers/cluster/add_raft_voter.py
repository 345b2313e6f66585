"""AddRaftVoter: one more voter in the quorum that decides metadata (KIP-853)."""

from typing import Any

from headwater.logtier.handlers.cluster.raft_voters import no_reconfiguration, require_voter
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

API_KEY = 80
VERSIONS = (0, 0)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Refuse: the controller is a quorum of one."""
    require_voter(request, context, "Add")
    if not request.listeners:
        raise KafkaError(ErrorCode.invalid_request, "Add voter request didn't include an endpoint of the voter")
    raise no_reconfiguration("adding")
