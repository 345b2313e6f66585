"""The context of a request for its handler."""

import logging
import random
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from headwater.logtier.controller.controller import Controller
from headwater.logtier.controller.metadata_changes import MetadataChanges
from headwater.logtier.group.coordinator import GroupCoordinator
from headwater.logtier.handlers.cold_records import Reader
from headwater.logtier.handlers.loop_time import LoopTime
from headwater.logtier.metadata.image import MetadataCache
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.quota.client_quotas import ClientQuotas, MutationQuota
from headwater.logtier.records.awaited_batches import AwaitedBatches
from headwater.logtier.replication.fetch_session import FetchSessionCache
from headwater.logtier.replication.partition_reads import FetchPartition
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.metrics import ApiMetrics, BrokerMetrics
from headwater.logtier.runtime.read_ahead import ReadAhead
from headwater.logtier.runtime.worker_threads import ClientWork
from headwater.logtier.security.audit_log import log_denial, log_more_denials, shown
from headwater.logtier.security.authorizer import Authorizer
from headwater.logtier.security.listener import PLAINTEXT_LISTENER, ListenerSecurity
from headwater.logtier.security.operations import CLUSTER_NAME, AclOperation, ResourceType
from headwater.logtier.security.sasl_session import SaslSession, share_owner
from headwater.logtier.transaction.coordinator import TransactionCoordinator
from headwater.logtier.transaction.markers import MarkerWriter
from headwater.logtier.transaction.verifier import TransactionVerifier

if TYPE_CHECKING:  # a single node imports no client of brokers
    from headwater.logtier.cluster.forwarding import Forwarding
    from headwater.logtier.cluster.leadership_checks import LeadershipChecks
    from headwater.logtier.cluster.remote_changes import RemoteChanges
    from headwater.logtier.cluster.session_watch import SessionWatch

logger = logging.getLogger(__name__)

#: Maximum number of logged denials per request: a request may list thousands of topics.
DENIALS_LOGGED_MAX = 20
#: Each thread may hold a few times DECOMPRESSED_BYTES_MAX for malicious batches: the number limits the memory of all
#: clients.
RECORD_THREADS_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class EmbeddedRequest:
    """A client's request that another broker has forwarded: with its header, without a length."""

    frame: bytes
    principal: str
    client_host: str
    #: The listener of the forwarding broker's connection: no forwarded API depends on the client's.
    listener: ListenerSecurity
    #: That connection; it counts the rejected requests of its clients.
    connection: "Connection | None" = None


AnswerEmbedded = Callable[[EmbeddedRequest], Awaitable[tuple[bytes, Sequence[int]]]]
"""Answers a forwarded request: the response with its header, without a length, and the error codes in it."""


@dataclass(slots=True)
class Services:
    """The components of the broker that handlers use."""

    clock: Clock
    prng: random.Random
    #: The cluster's image, and this broker's present configs.
    metadata: MetadataCache
    controller: Controller
    replica_manager: ReplicaManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verifier: TransactionVerifier
    markers: MarkerWriter
    #: First and last version of every API, as reported by ApiVersions.
    advertised_versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    #: None: all operations are permitted.
    authorizer: Authorizer | None = None
    #: By default without slots: every fetch gets a full response.
    fetch_sessions: FetchSessionCache[FetchPartition] = field(
        default_factory=lambda: FetchSessionCache(0, random.Random(0))
    )
    #: None: all records are sent as if they were in memory.
    read_ahead: ReadAhead | None = None
    #: Not active until a client has a quota.
    quotas: ClientQuotas = field(default_factory=ClientQuotas)
    metrics: BrokerMetrics = field(default_factory=BrokerMetrics)
    #: Name of the listener that serves the APIs between brokers; None on a single node, which serves none of them.
    inter_broker_listener: str | None = None
    #: Forwards requests to the controller; None on a single node, which is its own controller.
    forwarding: "Forwarding | None" = None
    #: The controller as this broker asks it for itself; None on a single node.
    remote_changes: "RemoteChanges | None" = None
    #: Tells when requests must wait, after a pause of the process; None on a single node, which has no session.
    session_watch: "SessionWatch | None" = None
    #: Asked before an answer from memory that another leader may know better; None on a single node.
    leadership_checks: "LeadershipChecks | None" = None
    #: Set by the dispatcher.
    answer_embedded: AnswerEmbedded | None = None
    #: Slow work on the records of produce requests.
    record_work: ClientWork = field(default_factory=lambda: ClientWork("records", RECORD_THREADS_MAX))

    @property
    def changes(self) -> MetadataChanges:
        """What this broker asks of the controller for itself, whichever broker is the controller."""
        return self.controller if self.remote_changes is None else self.remote_changes


class Connection(Reader, Protocol):
    """The connection of a request.

    Attributes:
        awaited_batches: Refused batches that the client will send again.
    """

    awaited_batches: AwaitedBatches

    def carried_out(self) -> None:
        """Note that a Produce request has been carried out and only its answer is awaited: others may follow."""

    def logs_refusal(self, host: str) -> bool:
        """Count a rejected request of a host; return whether to log it."""


class RequestContext:
    """The context of one request: client, host, version.

    Every request creates one, so values that few requests change have their defaults in the class.

    Attributes:
        reader: The connection; None in tests without one.
        request_bytes: Size of the request, for quotas.
        mute: Mutes the client for a number of milliseconds.
        throttle_ms: Throttle time, reported in the response; the client is muted for it.
        loop_time: Measures event loop time if the client has a quota of request time.
        is_slice: Whether the request is a slice of a long one: the response must be a tree, to be joined.
        denials: Denials so far; None for none.
        answer_errors: Error codes of a response that the handler encodes itself; None for none.
        checked_leaderships: The leaderships that were checked for the request, with the error of each; None for none.
    """

    reader: Connection | None = None
    request_bytes: int = 0
    mute: Callable[[int], None] | None = None
    throttle_ms: int = 0
    loop_time: LoopTime | None = None
    is_slice: bool = False
    denials: set[tuple[AclOperation, ResourceType, str]] | None = None
    answer_errors: list[int] | None = None
    checked_leaderships: dict[TopicPartition, KafkaError | None] | None = None

    def __init__(
        self,
        services: Services,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        client_host: str,
        principal: str,
        listener: ListenerSecurity = PLAINTEXT_LISTENER,
        sasl: SaslSession | None = None,
        api_metrics: ApiMetrics | None = None,
        begun_s: float = 0.0,
    ) -> None:
        """Create the context of one request.

        Args:
            listener: The client's listener.
            sasl: The client's authentication; None without SASL.
            api_metrics: Counters of the request; by default unused ones.
            begun_s: Time at which the request was received completely, by the performance counter.
        """
        self.services = services
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client_host = client_host
        self.principal = principal
        self.listener = listener
        self.sasl = sasl
        self.api_metrics = api_metrics or ApiMetrics()
        self.begun_s = begun_s

    def count_answer(self, error_codes: Sequence[int] | None, now_s: float) -> None:
        """Count the error codes of a finished response, none as 0, and the time of the request."""
        metrics = self.api_metrics
        metrics.seconds.observe(now_s - self.begun_s)
        if error_codes:
            for code in error_codes:
                metrics.errors[code] += 1
        else:
            metrics.errors[0] += 1

    def note_error(self, code: int) -> None:
        """Record an error code of a response that the handler encodes."""
        if self.answer_errors is None:
            self.answer_errors = []
        self.answer_errors.append(code)

    def log_refusal(self, what: str, error: KafkaError, level: int = logging.WARNING) -> None:
        """Log a rejection; of many rejections of one address only the first ones."""
        if logger.isEnabledFor(level) and (self.reader is None or self.reader.logs_refusal(self.client_host)):
            logger.log(
                level,
                "refused %s of client %s at %s: %s",
                what,
                shown(str(self.client_id)),
                self.client_host,
                shown(str(error), 1000),
            )

    def is_authorized(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        log_denied: bool = True,
    ) -> bool:
        """Whether the client may perform the operation; always, without an authorizer.

        Args:
            log_denied: Whether to log a denial; false if the result only filters the response.
        """
        authorizer = self.services.authorizer
        if authorizer is None or authorizer.is_authorized(
            self.principal, self.client_host, operation, resource_type, name
        ):
            return True
        if log_denied:
            self._log_denial(operation, resource_type, name)
        return False

    def is_authorized_for_any(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether the client may perform the operation on at least one resource of this type.

        Without an authorizer the result is always True.
        """
        authorizer = self.services.authorizer
        return authorizer is None or authorizer.is_authorized_for_any(
            self.principal, self.client_host, operation, resource_type
        )

    def require_cluster(self, operation: AclOperation) -> None:
        """Raise KafkaError(cluster_authorization_failed) unless the client may perform the operation on the cluster."""
        if not self.is_authorized(operation, ResourceType.cluster):
            raise KafkaError(ErrorCode.cluster_authorization_failed, "Cluster authorization failed.")

    def require_broker(self) -> None:
        """Raise KafkaError(cluster_authorization_failed) unless the client may act as a broker, which has no quotas."""
        self.require_cluster(AclOperation.cluster_action)
        self.exempt()

    def exempt(self) -> None:
        """Count the request against no quota: that of all users must not slow the brokers down, as in Kafka."""
        self.loop_time = None

    @property
    def share_owner(self) -> Hashable:
        """The owner of the share of common resources in which the request counts."""
        return share_owner(self.principal, self.client_host)

    @property
    def user(self) -> str:
        """The principal without its type, which is the user of quotas."""
        return self.principal.partition(":")[2]

    def throttle(self, wait_ms: int) -> None:
        """Throttle the client; of several quotas the longest time counts (KIP-219)."""
        if wait_ms > self.throttle_ms:
            self.throttle_ms = wait_ms
            if self.mute is not None:
                self.mute(wait_ms)

    def count_produced(self) -> None:
        """Count the request against the client's quota of produced bytes."""
        services = self.services
        if services.quotas.is_active:
            now_ms = services.clock.monotonic_ms()
            self.throttle(services.quotas.record_produce(self.user, self.client_id or "", self.request_bytes, now_ms))

    def mutations(self, strict_from: int) -> MutationQuota | None:
        """Return the client's quota of partition mutations, None without one; strict from version `strict_from` on."""
        services = self.services
        if not services.quotas.is_active:
            return None
        return services.quotas.mutations(
            self.user,
            self.client_id or "",
            services.clock.monotonic_ms(),
            is_strict=self.api_version >= strict_from,
        )

    def finish_throttling(self) -> int:
        """Record the request's time so far; return the throttle time for the response, in ms."""
        services = self.services
        if self.loop_time is not None:
            wait_ms = services.quotas.record_time(
                self.user, self.client_id or "", self.loop_time.take_ms(), services.clock.monotonic_ms()
            )
            self.throttle(wait_ms)
        return self.throttle_ms

    def _log_denial(self, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        """Log each denial of a request once, up to a maximum number."""
        if self.denials is None:
            self.denials = set()
        denial = (operation, resource_type, name)
        if denial in self.denials or len(self.denials) > DENIALS_LOGGED_MAX:
            return
        self.denials.add(denial)
        request = messages.api_name(self.api_key)
        if len(self.denials) > DENIALS_LOGGED_MAX:
            log_more_denials(self.principal, self.client_host, request)
        else:
            log_denial(self.principal, self.client_host, operation, resource_type, name, request)


class EmbeddedContext(RequestContext):
    """The context of a forwarded request. The broker that forwards it counts it, and mutes the client.

    Attributes:
        error_codes: The error codes of the finished response.
    """

    error_codes: Sequence[int] = ()

    def count_answer(self, error_codes: Sequence[int] | None, now_s: float) -> None:  # noqa: ARG002 (of the class)
        """Note the error codes."""
        self.error_codes = error_codes or ()
