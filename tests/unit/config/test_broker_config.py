import pytest

from headwater.logtier.config import BROKER_CONFIGS, BrokerConfig, ConfigError, ConfigType, Endpoint, render


def test_defaults_are_taken_where_nothing_is_set() -> None:
    config = BrokerConfig.from_properties()
    assert config.node_id == 1
    assert config.listeners == ("PLAINTEXT://:9092",)
    assert config.log_segment_bytes == 1 << 30
    assert config.log_retention_ms is None
    assert config.explicit == frozenset()


def test_texts_and_typed_values_come_to_the_same() -> None:
    from_texts = BrokerConfig.from_properties(
        {"num.partitions": "6", "delete.topic.enable": "False", "log.dirs": "a, b", "log.retention.ms": "-1"}
    )
    typed = BrokerConfig.from_properties(
        {"num.partitions": 6, "delete.topic.enable": False, "log.dirs": ["a", "b"], "log.retention.ms": -1}
    )
    for config in (from_texts, typed):
        assert config.num_partitions == 6
        assert config.delete_topic_enable is False
        assert config.log_dirs == ("a", "b")
        assert config.log_retention_ms == -1
        assert config.explicit == {"num.partitions", "delete.topic.enable", "log.dirs", "log.retention.ms"}


@pytest.mark.parametrize("name", BROKER_CONFIGS)
def test_every_default_passes_its_own_validator_and_survives_its_text(name: str) -> None:
    definition = BROKER_CONFIGS[name]
    if definition.default is not None:
        assert definition.parse(definition.default) == definition.default
        assert definition.parse(render(definition.default)) == definition.default
    definition.check_supported(definition.default)
    assert definition.doc.endswith(".")


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"log.segments.bytes": 1}, "'log.segments.bytes' is not known; did you mean 'log.segment.bytes'?"),
        ({"broker.id": 1}, "'broker.id' has no use here: its present name is node.id"),
        (
            {"replica.selector.class": "a.B"},
            "the only selector is org.apache.kafka.common.replica.RackAwareReplicaSelector",
        ),
        ({"sasl.mechanism.inter.broker.protocol": "GSSAPI"}, "must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"zookeeper.connect": ""}, "zookeeper.connect: must be host:port"),
        ({"zookeeper.sasl.jaas.config": 'a.DigestLoginModule required username="u";'}, "must be one DigestLoginModule"),
        ({"zookeeper.sasl.jaas.config": "secret"}, "not [hidden]"),
        ({"zookeeper.ssl.truststore.type": "JKS"}, "keys and certificates for ZooKeeper are PEM files"),
        ({"replica.lag.time.max.ms": 100}, "replica.fetch.wait.max.ms (500) is above replica.lag.time.max.ms (100)"),
        ({"replica.socket.timeout.ms": 1}, "is above replica.socket.timeout.ms (1)"),
        ({"transaction.state.log.load.buffer.size": 1}, "has no use here: records of groups and transactions are read"),
        ({"qqqq": 1}, "broker property 'qqqq' is not known"),
        ({"num.partitions": "six"}, "num.partitions: must be of type INT, not 'six'"),
        ({"num.partitions": "0"}, "num.partitions: must be 1 or more, not '0'"),
        ({"num.partitions": True}, "num.partitions: must be of type INT"),
        ({"num.partitions": None}, "num.partitions: a value is missing"),
        ({"num.partitions": "9" * 5000}, "num.partitions: must be of type INT"),
        ({"node.id": 2**31}, "node.id: must be of type INT"),
        ({"offsets.topic.replication.factor": 2**15}, "must be of type SHORT"),
        ({"delete.topic.enable": "yes"}, "delete.topic.enable: must be of type BOOLEAN"),
        ({"log.message.timestamp.type": "Both"}, "must be one of CreateTime, LogAppendTime"),
        ({"log.dirs": "x" * 40_000}, "32767 is the limit"),
        ({"log.dirs": ""}, "log.dirs: must be a list of at least one entry"),
        ({"log.dirs": "a,a"}, "log.dirs: a folder stands there twice"),
        ({"log.cleanup.policy": "shrink"}, "log.cleanup.policy: must be a list of delete, compact"),
        ({"log.cleaner.io.max.bytes.per.second": "0"}, "must be more than 0"),
        ({"log.cleaner.dedupe.buffer.size": "1000"}, "must be 1048576 or more"),
        ({"listeners": "localhost:9092"}, "is not of the form NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:99999"}, "is not of the form NAME://host:port"),
        ({"listeners": "SSL://:9093"}, "listener SSL: TLS needs a private key and its certificates"),
        ({"listeners": "HTTP://:9093"}, "the listener has no security protocol; add HTTP:SASL_SSL"),
        ({"listeners": "PLAINTEXT://::1:9093"}, "an IPv6 address stands in brackets"),
        ({"listeners": "PLAINTEXT://a b:9093"}, "does not name a host"),
        ({"listeners": "PLAINTEXT://a:9093,PLAINTEXT://b:9093"}, "two of them have the same port"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "is no address that a client can connect to"),
        ({"advertised.listeners": "PLAINTEXT://:9092"}, "is no address that a client can connect to"),
        ({"advertised.listeners": "PLAINTEXT://h:0"}, "needs the port"),
        ({"group.min.session.timeout.ms": 2_000_000}, "is above group.max.session.timeout.ms"),
        ({"message.max.bytes": 200_000_000}, "is above socket.request.max.bytes"),
        ({"log.retention.hours": 0}, "log.retention.hours: must be -1 (no limit), or 1 or more"),
        ({"log.retention.minutes": 0, "log.retention.hours": 5}, "log.retention.minutes: must be -1"),
        ({"log.retention.ms": 0, "log.retention.hours": 5}, "log.retention.ms: must be -1"),
        ({"connections.max.idle.ms": 0}, "must be 1 or more, or negative"),
        ({"max.connections.per.ip": 0}, "names no address: nobody could connect"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_property(properties: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties(properties)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "properties",
    [
        {"log.retention.bytes": "-2"},
        {"log.retention.minutes": "0", "log.retention.ms": "5"},  # the stronger one counts
        {"connections.max.idle.ms": "-1"},
        {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "10.0.0.1:5"},
    ],
)
def test_what_kafka_takes_is_taken(properties: dict[str, str]) -> None:
    config = BrokerConfig.from_properties(properties)
    assert {name: render(config.value(name)) for name in properties} == properties


def test_endpoints_are_parsed() -> None:
    config = BrokerConfig.from_properties(
        {"listeners": "PLAINTEXT://[::1]:0", "advertised.listeners": "PLAINTEXT://kafka.example:19092"}
    )
    assert config.bind_endpoints == (Endpoint("PLAINTEXT", "::1", 0),)
    assert config.advertised_endpoints == (Endpoint("PLAINTEXT", "kafka.example", 19092),)
    assert BrokerConfig.from_properties().advertised_endpoints == ()


def test_replaced_properties_keep_the_others() -> None:
    config = BrokerConfig.from_properties({"num.partitions": 6})
    replaced = config.with_properties({"log.retention.ms": "1000"})
    assert (replaced.num_partitions, replaced.log_retention_ms) == (6, 1000)
    assert config.log_retention_ms is None
    assert config.with_properties({}) is config


def test_what_does_not_fit_is_left_out_and_the_rest_applied_in_any_order() -> None:
    config = BrokerConfig.from_properties({"group.min.session.timeout.ms": 10, "group.max.session.timeout.ms": 20})
    fitting, reasons = config.with_fitting(
        {
            "group.max.session.timeout.ms": "8",  # fits the new minimum only
            "group.min.session.timeout.ms": "7",
            "group.z": "1",
            "log.retention.ms": "soon",
        }
    )
    assert (fitting.group_min_session_timeout_ms, fitting.group_max_session_timeout_ms) == (7, 8)
    assert fitting.log_retention_ms is None
    assert reasons.keys() == {"group.z", "log.retention.ms"}
    assert "must be of type LONG, not 'soon'" in reasons["log.retention.ms"]


def test_a_secret_is_never_shown() -> None:
    from headwater.logtier.config import ConfigDef

    definition = ConfigDef("ssl.key.password", ConfigType.PASSWORD, None, "A secret.")
    with pytest.raises(ConfigError) as caught:
        definition.parse(b"hunter2")
    assert "hunter2" not in str(caught.value)
