"""Broker configs of Apache Kafka 4.1 without effect here, each with the reason; the broker rejects them."""

from collections.abc import Mapping
from typing import Final

_KRAFT = "there is no KRaft quorum; the metadata is in ZooKeeper, or in the folder of a single node"
_THREADS = "one event loop serves all connections; blocking work has dedicated threads"
_SHUTDOWN = "a broker that stops always leaves the cluster before it closes its logs"
_FOLDERS = "a broker with a failed log folder registers in another epoch at once"
_SETUP = "the time for the setup of a connection does not grow with failures"
_EVEN = "moves between log folders are throttled evenly, without windows"
_EVEN_REPLICATION = "replication is throttled evenly, without windows"
_REMOTE = "there is no tiered storage"
_SHARE = "there are no share groups"
_STREAMS = "there are no streams groups (KIP-1071)"
_JAVA = "the config selects or tunes a Java class"
_KERBEROS = "there is no Kerberos (GSSAPI)"
_CLIENT = "the config applies to logins of clients; brokers log in to each other by PLAIN and SCRAM"
_TOKENS = "there are no delegation tokens"
_METRICS = "metrics are exported to Prometheus (prometheus.port)"
_PURGATORY = "completed requests leave the purgatory immediately"
_APPENDS = "records of groups and transactions are appended without linger"
_LOADS = "records of groups and transactions are read batch by batch"

UNUSED: Final[Mapping[str, str]] = {
    name: reason
    for reason, names in {
        _KRAFT: """broker.heartbeat.interval.ms broker.session.timeout.ms controller.listener.names
            controller.quorum.append.linger.ms controller.quorum.bootstrap.servers
            controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms
            controller.quorum.fetch.timeout.ms controller.quorum.request.timeout.ms
            controller.quorum.retry.backoff.ms controller.quorum.voters
            early.start.listeners initial.broker.registration.timeout.ms metadata.log.dir
            metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms
            metadata.log.segment.bytes metadata.log.segment.ms metadata.max.idle.interval.ms
            metadata.max.retention.bytes metadata.max.retention.ms process.roles sasl.mechanism.controller.protocol""",
        _THREADS: """background.threads group.coordinator.threads num.io.threads num.network.threads
            num.recovery.threads.per.data.dir num.replica.alter.log.dirs.threads num.replica.fetchers
            queued.max.requests""",
        _EVEN: """alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds""",
        _SHUTDOWN: """controlled.shutdown.enable""",
        _FOLDERS: """log.dir.failure.timeout.ms""",
        _EVEN_REPLICATION: """replication.quota.window.num replication.quota.window.size.seconds""",
        _SETUP: """socket.connection.setup.timeout.max.ms""",
        _REMOTE: """log.local.retention.bytes log.local.retention.ms remote.fetch.max.wait.ms
            remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
            remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
            remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds
            remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.max.bytes.per.second
            remote.log.manager.fetch.quota.window.num remote.log.manager.fetch.quota.window.size.seconds
            remote.log.manager.task.interval.ms remote.log.manager.thread.pool.size
            remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.class.name
            remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix
            remote.log.metadata.manager.listener.name remote.log.reader.max.pending.tasks remote.log.reader.threads
            remote.log.storage.manager.class.name remote.log.storage.manager.class.path
            remote.log.storage.manager.impl.prefix remote.log.storage.system.enable""",
        _SHARE: """group.share.assignors group.share.delivery.count.limit group.share.heartbeat.interval.ms
            group.share.max.heartbeat.interval.ms group.share.max.record.lock.duration.ms
            group.share.max.session.timeout.ms group.share.max.share.sessions group.share.max.size
            group.share.min.heartbeat.interval.ms group.share.min.record.lock.duration.ms
            group.share.min.session.timeout.ms group.share.partition.max.record.locks
            group.share.record.lock.duration.ms group.share.session.timeout.ms share.coordinator.append.linger.ms
            share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot
            share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
            share.coordinator.state.topic.num.partitions share.coordinator.state.topic.replication.factor
            share.coordinator.state.topic.segment.bytes share.coordinator.threads
            share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests""",
        _STREAMS: """group.streams.heartbeat.interval.ms group.streams.max.heartbeat.interval.ms
            group.streams.max.session.timeout.ms group.streams.max.size group.streams.max.standby.replicas
            group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
            group.streams.num.standby.replicas group.streams.session.timeout.ms""",
        _JAVA: """alter.config.policy.class.name client.quota.callback.class create.topic.policy.class.name
            principal.builder.class security.providers ssl.engine.factory.class ssl.keymanager.algorithm ssl.provider
            ssl.secure.random.implementation ssl.trustmanager.algorithm sasl.oauthbearer.jwt.retriever.class
            sasl.oauthbearer.jwt.validator.class""",
        _KERBEROS: """sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
            sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
            sasl.kerberos.ticket.renew.window.factor""",
        _CLIENT: """sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class
            sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
            sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
            sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.oauthbearer.assertion.algorithm
            sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
            sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
            sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
            sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
            sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
            sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
            sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url ssl.allow.dn.changes ssl.allow.san.changes""",
        _TOKENS: """delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms
            delegation.token.max.lifetime.ms delegation.token.secret.key""",
        _METRICS: """kafka.metrics.polling.interval.secs kafka.metrics.reporters metric.reporters metrics.num.samples
            metrics.recording.level metrics.sample.window.ms telemetry.max.bytes""",
        _PURGATORY: """delete.records.purgatory.purge.interval.requests fetch.purgatory.purge.interval.requests
            producer.purgatory.purge.interval.requests""",
        _APPENDS: """group.coordinator.append.linger.ms""",
        _LOADS: """offsets.load.buffer.size transaction.state.log.load.buffer.size""",
        "both protocols are always enabled; clients choose": "group.coordinator.rebalance.protocols",
        "its present name is log.dirs": "log.dir",
        "its present name is node.id": "broker.id",
        "segments are not preallocated": "log.preallocate",
        "committed offsets are not compressed": "offsets.topic.compression.codec",
        "two-phase commit (KIP-939) is not supported": "transaction.two.phase.commit.enable",
    }.items()
    for name in names.split()
}
