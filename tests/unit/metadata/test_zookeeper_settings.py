from __future__ import annotations

import re
from pathlib import Path

import pytest

from headwater.logtier.config import BrokerConfig, ConfigError
from headwater.logtier.metadata.zookeeper.settings import ZooKeeperSettings
from tests.conftest import Certificates


@pytest.mark.parametrize(
    ("connect", "hosts", "chroot"),
    [
        ("zk", [("zk", 2181)], ""),
        ("zk/", [("zk", 2181)], ""),
        ("zk1:2182, zk2:2183/kafka", [("zk1", 2182), ("zk2", 2183)], "/kafka"),
        ("[::1]:2182,[fe80::1]/a/b", [("::1", 2182), ("fe80::1", 2181)], "/a/b"),
    ],
)
def test_zookeeper_connect_names_hosts_and_a_chroot(connect: str, hosts: list[tuple[str, int]], chroot: str) -> None:
    settings = ZooKeeperSettings(connect)
    assert (list(settings.hosts), settings.chroot) == (hosts, chroot)


@pytest.mark.parametrize(
    ("connect", "said"),
    [
        ("", "'' is not host:port"),
        ("zk:port", "'zk:port' is not host:port"),
        ("zk:0", "'zk:0' is not host:port"),
        ("zk:99999", "'zk:99999' is not host:port"),
        ("zk1,,zk2", "'' is not host:port"),
        ("zk1/kafka,zk2/kafka", "the chroot comes once"),
        ("zk//kafka", "the chroot comes once"),
        ("zk/kafka/", "the chroot comes once"),
        ("zk/../kafka", "the chroot comes once"),
    ],
)
def test_a_zookeeper_connect_that_is_wrong_is_told_in_one_line(connect: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        ZooKeeperSettings(connect)
    assert "\n" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    settings = ZooKeeperSettings("zk", username="me", password="hush", keystore_password="quiet")
    assert "hush" not in repr(settings)
    assert "quiet" not in repr(settings)


def test_access_control_without_a_login_would_lock_everyone_out() -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.set\.acl=true needs a login"):
        ZooKeeperSettings("zk", set_acl=True)
    with pytest.raises(ConfigError, match="needs a login"):
        ZooKeeperSettings("zk", set_acl=True, tls=True)
    ZooKeeperSettings("zk", set_acl=True, tls=True, keystore="key.pem")
    ZooKeeperSettings("zk", set_acl=True, username="me")


def test_a_start_waits_as_long_as_a_session_unless_told_otherwise() -> None:
    assert ZooKeeperSettings("zk").start_timeout_s() == 18
    assert ZooKeeperSettings("zk", session_timeout_ms=9000).start_timeout_s() == 9
    assert ZooKeeperSettings("zk", connection_timeout_ms=500).start_timeout_s() == 0.5
    with pytest.raises(ConfigError, match="must be positive"):
        ZooKeeperSettings("zk", session_timeout_ms=0)


def test_tls_trusts_the_truststore_alone_and_files_that_are_wrong_are_named(
    certificates: Certificates, tmp_path: Path
) -> None:
    assert ZooKeeperSettings("zk").tls_context() is None
    own = certificates.issue("broker", {"CN": "broker"})
    context = ZooKeeperSettings("zk", tls=True, truststore=str(certificates.ca), keystore=str(own)).tls_context()
    assert context is not None
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1
    missing = str(tmp_path / "none.pem")
    with pytest.raises(ConfigError, match=rf"zookeeper\.ssl\.truststore\.location: {re.escape(missing)}: No such"):
        ZooKeeperSettings("zk", tls=True, truststore=missing).tls_context()
    with pytest.raises(ConfigError, match=r"zookeeper\.ssl\.keystore\.location: .*ca\.pem"):
        ZooKeeperSettings("zk", tls=True, keystore=str(certificates.ca)).tls_context()


def test_the_configs_of_a_broker_are_the_settings() -> None:
    config = BrokerConfig.from_properties(
        {
            "zookeeper.connect": "zk1:2182/kafka",
            "zookeeper.session.timeout.ms": 6000,
            "zookeeper.connection.timeout.ms": 7000,
            "zookeeper.set.acl": "true",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": "trusted.pem",
            "zookeeper.ssl.keystore.location": "key.pem",
            "zookeeper.ssl.keystore.password": "quiet",
            "zookeeper.ssl.endpoint.identification.algorithm": "",
            "zookeeper.sasl.jaas.config": 'a.DigestLoginModule required username="me" password="hush";',
        }
    )
    assert ZooKeeperSettings.from_config(config) == ZooKeeperSettings(
        "zk1:2182/kafka",
        session_timeout_ms=6000,
        connection_timeout_ms=7000,
        set_acl=True,
        tls=True,
        truststore="trusted.pem",
        keystore="key.pem",
        keystore_password="quiet",
        checks_hostname=False,
        username="me",
        password="hush",
    )
    for secret in ("hush", "quiet"):
        assert secret not in repr(config)


def test_the_defaults_of_the_configs_are_those_of_the_settings() -> None:
    config = BrokerConfig.from_properties({"zookeeper.connect": "zk"})
    assert ZooKeeperSettings.from_config(config) == ZooKeeperSettings("zk")
