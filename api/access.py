"""Dependencies of the route functions: the administration client and the cluster in the path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Path, Request

from headwater.api.links import Links, request_root
from headwater.api.topic_admin import TopicAdmin
from headwater.api.topic_model import TOPIC_NAME_LENGTH_MAX, ErrorCode, TopicAdminError

BROKER_IS_SECURED: Final = "the broker is secured, and this server would act with its own rights for whoever asks"
HOST_IS_OPEN: Final = "it listens on an address that other machines reach"
SETTING_FORBIDS: Final = "the setting http_changes is 'refuse'"


@dataclass(frozen=True, slots=True)
class ChangePolicy:
    """Whether this server accepts changes from its callers, which are not authenticated; `refusal` gives the reason."""

    refusal: str | None = None

    @classmethod
    def of(cls, setting: str, *, broker_is_secured: bool, host_is_loopback: bool) -> ChangePolicy:
        """Build the policy from the setting `http_changes`: allow, refuse, or auto.

        `auto` allows changes if the broker is not secured and the server listens on the loopback interface only.

        >>> ChangePolicy.of("auto", broker_is_secured=False, host_is_loopback=True).refusal is None
        True
        >>> ChangePolicy.of("auto", broker_is_secured=False, host_is_loopback=False).refusal
        'it listens on an address that other machines reach'
        """
        if setting == "allow":
            return cls()
        if setting == "refuse":
            return cls(SETTING_FORBIDS)
        if broker_is_secured:
            return cls(BROKER_IS_SECURED)
        return cls() if host_is_loopback else cls(HOST_IS_OPEN)

    def require(self, method: str) -> None:
        """Raise NOT_AUTHORIZED if changes are refused."""
        if self.refusal is not None:
            raise TopicAdminError(
                ErrorCode.NOT_AUTHORIZED,
                f"{method} is refused: this server does not ask who is calling, and {self.refusal}; change it with the "
                "command line, or let everybody who reaches this port make changes: the setting http_changes=allow",
            )


class ClusterDirectory:
    """Caches the id of the cluster behind the administration client.

    Invariant: `cluster_id` was returned by the cluster itself. The cluster is queried once, and again when a path
    contains another id.
    """

    def __init__(self, admin: TopicAdmin) -> None:
        self.admin = admin
        self.cluster_id: str | None = None

    def require(self, cluster_id: str) -> None:
        """Raise UNKNOWN_CLUSTER unless `cluster_id` is the id of the cluster."""
        if cluster_id == self.cluster_id:
            return
        self.cluster_id = self.admin.cluster().cluster_id
        if cluster_id != self.cluster_id:
            raise TopicAdminError(
                ErrorCode.UNKNOWN_CLUSTER,
                f"cluster {cluster_id[:60]!r} cannot be found; the cluster here is {self.cluster_id!r}",
            )


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """A verified cluster id, the client of that cluster, and its links."""

    cluster_id: str
    admin: TopicAdmin
    links: Links


async def get_admin(request: Request) -> TopicAdmin:
    """Return the application's administration client."""
    admin = request.app.state.clusters.admin
    assert isinstance(admin, TopicAdmin)
    return admin


def get_cluster(request: Request, cluster_id: str) -> ClusterAccess:
    """Verify the path's cluster id. Blocks while the id is unknown; FastAPI runs the function in the thread pool."""
    clusters = request.app.state.clusters
    assert isinstance(clusters, ClusterDirectory)
    clusters.require(cluster_id)
    return ClusterAccess(cluster_id, clusters.admin, Links(request_root(request), cluster_id))


Admin = Annotated[TopicAdmin, Depends(get_admin)]
Cluster = Annotated[ClusterAccess, Depends(get_cluster)]
TopicName = Annotated[str, Path(max_length=TOPIC_NAME_LENGTH_MAX, description="Name of a topic")]
PartitionId = Annotated[int, Path(ge=0, le=2**31 - 1, description="Number of a partition")]
BrokerId = Annotated[int, Path(ge=0, le=2**31 - 1, description="Id of a broker")]
ConfigName = Annotated[str, Path(max_length=249, description="Name of a topic config")]
