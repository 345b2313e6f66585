"""Listeners: their names, protocols, own configs, and what they need to be secure."""

from collections.abc import Mapping

import pytest

from headwater.logtier.config import BrokerConfig, ConfigError
from headwater.logtier.config.jaas import plain_users
from headwater.logtier.config.listener_config import listener_config_def
from headwater.logtier.config.principal_mapping import map_name, parse_mapping_rules

KEYS = {"ssl.keystore.location": "server.pem"}
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret";'
PLAIN = {"sasl.enabled.mechanisms": "PLAIN", "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS}


def test_a_listener_has_a_name_and_the_map_its_protocol() -> None:
    config = BrokerConfig.from_properties(
        {
            "listeners": "inside://127.0.0.1:9092,OUTSIDE://:9093",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SSL",
            "advertised.listeners": "OUTSIDE://broker.example.com:443",
            **KEYS,
        }
    )
    inside, outside = config.bind_endpoints
    assert (inside.name, inside.protocol, inside.uses_tls, inside.uses_sasl) == ("INSIDE", "PLAINTEXT", False, False)
    assert (outside.name, outside.protocol, outside.uses_tls) == ("OUTSIDE", "SSL", True)
    assert [str(endpoint) for endpoint in config.advertised_endpoints] == ["OUTSIDE://broker.example.com:443"]


def test_a_listeners_own_config_is_stronger_and_a_mechanisms_stronger_still() -> None:
    config = BrokerConfig.from_properties(
        {
            "listeners": "PLAINTEXT://:1,SASL_PLAINTEXT://:2",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "connections.max.reauth.ms": "1",
            "listener.name.sasl_plaintext.connections.max.reauth.ms": "2",
            "listener.name.sasl_plaintext.scram-sha-256.connections.max.reauth.ms": "3",
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.plaintext.max.connections": "7",
        }
    )
    plaintext, sasl = (config.listener_config(endpoint) for endpoint in config.bind_endpoints)
    assert plaintext.value("connections.max.reauth.ms") == 1
    assert sasl.value("connections.max.reauth.ms", "SCRAM-SHA-512") == 2
    assert sasl.value("connections.max.reauth.ms", "SCRAM-SHA-256") == 3
    assert sasl.mechanisms == ("SCRAM-SHA-512",)
    assert plaintext.own_value("max.connections") == 7
    assert sasl.own_value("max.connections") is None


def test_secrets_are_not_in_the_text_of_the_configs() -> None:
    config = BrokerConfig.from_properties(
        {"listeners": "SASL_SSL://:1", "ssl.key.password": "key-secret", **KEYS, **PLAIN}
    )
    assert config.listener_config(config.bind_endpoints[0]).plain_users == {"alice": "alice-secret"}
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"listeners": "SSL://:1"}, "TLS needs a private key and its certificates"),
        ({"listeners": "SSL://:1", **KEYS, "ssl.keystore.key": "x"}, "not both"),
        ({"listeners": "SSL://:1", **KEYS, "ssl.client.auth": "required"}, "needs ssl.truststore.location"),
        ({"listeners": "SSL://:1", **KEYS, "ssl.keystore.type": "JKS"}, "turn a JKS into PKCS12"),
        ({"listeners": "SSL://:1", **KEYS, "ssl.keystore.password": "x"}, "a PEM file has no ssl.keystore.password"),
        ({"listeners": "SSL://:1", **KEYS, "ssl.enabled.protocols": "TLSv1"}, "only TLSv1.2 and TLSv1.3"),
        ({"listeners": "SASL_PLAINTEXT://:1", "sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI"),
        ({"listeners": "SASL_PLAINTEXT://:1", "sasl.enabled.mechanisms": "PLAIN"}, "PLAIN has no users"),
        ({"listeners": "SASL_PLAINTEXT://:1", "sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms is empty"),
        ({"listeners": "SASL_PLAINTEXT://:1", "sasl.enabled.mechanisms": "OAUTHBEARER"}, "jwks.endpoint.url"),
        (
            {
                "listeners": "SASL_PLAINTEXT://:1",
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": "ftp://x",
            },
            "must be an http, https or file URL",
        ),
        ({"sasl.jaas.config": JAAS}, "belongs to a listener and a mechanism"),
        ({"listener.name.outside.ssl.client.auth": "none"}, "there is no listener 'outside'; there are plaintext"),
        ({"listener.name.plaintext.num.partitions": "3"}, "'num.partitions' is not known"),
        ({"listener.name.plaintext.ssl.client.auht": "none"}, "did you mean 'ssl.client.auth'?"),
        ({"listener.name.plaintext.plain.ssl.client.auth": "none"}, "is not known"),
        ({"inter.broker.listener.name": "INSIDE"}, "there is no listener 'INSIDE'"),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "must be NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "A:TLS"}, "must be NAME:PROTOCOL"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "two of them have the same name"),
        ({"advertised.listeners": "SSL://h:1"}, "has a name that no listener has"),
        ({"ssl.principal.mapping.rules": "RULE:^CN=(.*$/$1/"}, "must be rules such as"),
        ({"max.connections.per.ip.overrides": "10.0.0.1"}, "must be address:count"),
        ({"max.connections.per.ip.overrides": "a..b:5"}, "must be address:count"),
        ({"max.connections.per.ip.overrides": "127.0.0.1:0"}, "must be address:count"),
        ({"max.connections.per.ip.overrides": "10.0.0.1:3,[::1]:0"}, "must be address:count"),
        ({"max.connections.per.ip.overrides": "localhost:0"}, "must be address:count"),
        ({"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "10.0.0.1:0"}, "nobody could connect"),
        ({"max.connections.per.ip.overrides": "a" * 64 + ":5"}, "must be address:count"),
        ({"sasl.server.callback.handler.class": "com.example.Mine"}, "no Java classes are loaded"),
    ],
)
def test_what_cannot_be_secure_or_cannot_be_is_one_line(properties: Mapping[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties(properties)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        'PlainLoginModule required user_a="secret"',
        'PlainLoginModule required user_a="secret;',
        'PlainLoginModule sometimes user_a="secret";',
        'PlainLoginModule required user_a "secret";',
        'PlainLoginModule required; PlainLoginModule required user_a="secret";',
        'ScramLoginModule required user_a="secret";',
    ],
)
def test_a_wrong_jaas_text_is_told_without_its_passwords(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plain_users("the.config", text)
    assert str(caught.value).startswith("the.config: ")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("rules", "name", "mapped"),
    [
        ("DEFAULT", "CN=Duke, OU=ServiceUsers", "CN=Duke, OU=ServiceUsers"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, DEFAULT", "CN=Duke,OU=ServiceUsers,O=Org", "Duke"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?)$/$1@$2/L", "CN=Duke,OU=SME,O=mycp,L=Fulton", "duke@sme"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "O=x,cn=duke", "DUKE"),
        ("RULE:^CN=(.*?),OU=nobody$/$1/", "CN=Duke,OU=SME", None),
        ("RULE:^CN=(.*?)$/$1@$4/", "CN=Duke", "Duke@$4"),
        ("RULE:^CN=(.*?)$/$12/", "CN=Duke", "Duke2"),
        ("RULE:^CN=(.*?)$/a\\/b\\$$1/", "CN=Duke", "a/b$Duke"),
    ],
)
def test_names_of_certificates_become_principals_by_kafkas_rules(rules: str, name: str, mapped: str | None) -> None:
    assert map_name(name, parse_mapping_rules(rules)) == mapped


def test_configs_of_a_listener_are_not_altered_while_it_runs() -> None:
    for name in ("max.connections", "max.connection.creation.rate", "ssl.client.auth"):
        assert not listener_config_def(f"listener.name.outside.{name}").dynamic
