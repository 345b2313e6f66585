"""RemoveRaftVoter: removes a voter from the metadata quorum (KIP-853); not supported."""

from typing import Any

from headwater.logtier.handlers.cluster.raft_voters import no_reconfiguration, require_voter
from headwater.logtier.handlers.context import RequestContext

API_KEY = 81
VERSIONS = (0, 0)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Reject the request: the controller is a quorum of one."""
    require_voter(request, context, "Remove")
    raise no_reconfiguration("removing")
