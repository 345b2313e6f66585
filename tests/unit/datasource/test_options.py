from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificates

from headwater.logtier.client.security import ClientSecurity
from headwater.pipelines.datasource import kafka_properties
from headwater.pipelines.datasource.errors import OptionError
from headwater.pipelines.datasource.options import READ_OPTIONS, WRITE_OPTIONS, ReadOptions, WriteOptions

if TYPE_CHECKING:
    from tests.conftest import Certificates

READING = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}
WRITING = {"kafka.bootstrap.servers": "b:9092", "topic": "t"}
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="my-secret";'


def read(**options: str) -> ReadOptions:
    return ReadOptions.parse(READING | options)


def refused(options: dict[str, str], base: dict[str, str] = READING) -> str:
    with pytest.raises(OptionError) as caught:
        (ReadOptions if base is READING else WriteOptions).parse({**base, **options})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_names_are_taken_in_any_case() -> None:
    options = ReadOptions.parse({"KAFKA.Bootstrap.Servers": "b:9092", "SUBSCRIBE": "t", "MAXoffsetsPERtrigger": "5"})
    assert options.offsets_per_trigger_max == 5


def test_a_query_without_options_has_sparks_defaults() -> None:
    options = read()
    assert (options.fail_on_data_loss, options.include_headers, options.client.read_committed) == (True, False, False)
    assert (options.offset_attempts, options.offset_retry_ms) == (3, 1000)
    assert options.trigger_delay_ms_max == 15 * 60_000
    assert (options.offsets_per_trigger_min, options.partitions_min, options.records_per_partition_max) == (None,) * 3


def test_what_a_tables_catalog_adds_to_its_options_is_passed_over() -> None:
    added = {"provider": "headwater", "owner": "me", "location": "file:/w/t", "option.subscribe": "t", "path": "/w/t"}
    assert ReadOptions.parse(READING | added) == read()
    assert refused({"option.subscribed": "t"}).startswith("option 'option.subscribed' is not known")
    assert refused({"provided": "t"}).startswith("option 'provided' is not known")


def test_the_disorder_of_timestamps_is_stated_or_none() -> None:
    assert read().timestamp_disorder_ms is None
    assert (
        read(timestampDisorderMs="0").timestamp_disorder_ms,
        read(TimestampDisorderMS="60").timestamp_disorder_ms,
    ) == (0, 60)
    assert "option timestampDisorderMs = '-1': not between 0" in refused({"timestampDisorderMs": "-1"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribePattern": "t.*"}, "exactly one of the options subscribe, subscribePattern, assign"),
        ({"subscribe": " , "}, "no topic is named"),
        ({"startingOffsets": "soon"}, "option startingOffsets = 'soon': neither earliest, latest"),
        ({"startingOffsets": '{"t": 5}'}, "not of the form"),
        ({"minPartitions": "many"}, "option minPartitions = 'many': not a whole number"),
        ({"minPartitions": "0"}, "not between 1 and 2147483647"),
        ({"maxRecordsPerPartition": "0"}, "not between 1 and"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is more than maxOffsetsPerTrigger = 8"),
        ({"maxTriggerDelay": "a while"}, "option maxTriggerDelay = 'a while': not a time such as 500ms"),
        ({"failOnDataLoss": "maybe"}, "only true or false is supported"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "only error or latest is supported"),
        ({"kafka.isolation.level": "serializable"}, "only read_committed or read_uncommitted is supported"),
        ({"kafka.bootstrap.servers": "nonsense"}, "'nonsense' is not an address"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"kafka.isolation.levl": "x"}, "did you mean kafka.isolation.level?"),
        (
            {"startingOffsets": '{"t": {"0": 9}}', "endingOffsets": '{"t": {"0": 8}}'},
            "t-0 starts at 9, behind its end at 8",
        ),
        (
            {"startingOffsets": '{"t": {"0": 1}}', "endingOffsets": '{"t": {"1": 8}}'},
            "must name the same partitions; only one of them names t-0",
        ),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 9}}', "endingOffsetsByTimestamp": '{"t": {"0": 8}}'},
            "option startingOffsetsByTimestamp: t-0 starts at 9",
        ),
    ],
)
def test_a_bad_option_is_one_clear_line(options: dict[str, str], message: str) -> None:
    assert message in refused(options)


@pytest.mark.parametrize(
    ("base", "properties"),
    [(READING, kafka_properties.CONSUMER_REFUSED), (WRITING, kafka_properties.PRODUCER_REFUSED)],
)
def test_what_spark_refuses_of_kafkas_properties_is_refused_with_the_reason(
    base: dict[str, str], properties: dict[str, str]
) -> None:
    for name, reason in properties.items():
        assert refused({f"kafka.{name}": "x"}, base) == f"option kafka.{name} is not supported: {reason}"


def test_properties_that_mean_nothing_here_are_taken() -> None:
    for name in kafka_properties.CONSUMER_WITHOUT_EFFECT:
        read(**{f"kafka.{name}": "x"})
    for name in kafka_properties.PRODUCER_WITHOUT_EFFECT:
        WriteOptions.parse({**WRITING, f"kafka.{name}": "x"})
    read(groupIdPrefix="mine")


def test_no_property_is_said_to_be_two_things() -> None:
    for used, ignored, denied in (
        (READ_OPTIONS, kafka_properties.CONSUMER_WITHOUT_EFFECT, kafka_properties.CONSUMER_REFUSED),
        (WRITE_OPTIONS, kafka_properties.PRODUCER_WITHOUT_EFFECT, kafka_properties.PRODUCER_REFUSED),
    ):
        names = [*used, *kafka_properties.kafka_options(ignored), *kafka_properties.kafka_options(denied)]
        assert len(names) == len(set(names))


def test_weaker_acknowledgements_are_taken_and_never_weaken_a_write() -> None:
    options = WriteOptions.parse({**WRITING, "kafka.acks": "1", "kafka.enable.idempotence": "false"})
    assert options.producer == WriteOptions.parse(WRITING).producer
    assert "only all or -1 or 1 or 0 is supported" in refused({"kafka.acks": "2"}, WRITING)


# -- security --------------------------------------------------------------------------------------------------------


def security(**properties: str) -> ClientSecurity:
    return read(**{f"kafka.{name.replace('_', '.')}": value for name, value in properties.items()}).client.security


def test_jaas_is_translated() -> None:
    secure = security(security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=JAAS)
    assert (secure.protocol, secure.mechanism, secure.username, secure.password) == (
        "SASL_SSL",
        "SCRAM-SHA-512",
        "me",
        "my-secret",
    )


def test_no_secret_is_in_an_error_or_a_repr() -> None:
    given = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.jaas.config": JAAS}
    assert "my-secret" not in refused({**given, "kafka.sasl.mechanism": "GSSAPI"})
    assert "my-secret" not in refused({**given, "kafka.sasl.jaas.config": JAAS.rstrip(";")})
    assert "my-secret" not in repr(read(**{**given, "kafka.sasl.mechanism": "SCRAM-SHA-512"}))


def test_what_the_protocol_does_not_use_is_not_looked_at() -> None:
    assert security(ssl_truststore_location="/nowhere.jks", sasl_mechanism="GSSAPI") == ClientSecurity()


def test_pem_files_stay_files(certificates: Certificates) -> None:
    alice = certificates.issue("options-alice", {"CN": "Alice"})
    secure = security(
        security_protocol="SSL",
        ssl_truststore_location=str(certificates.ca),
        ssl_keystore_location=str(alice),
        ssl_keystore_type="PEM",
        ssl_enabled_protocols="TLSv1.2,TLSv1.3",
    )
    assert (secure.ca_location, secure.certificate_location) == (str(certificates.ca), str(alice))


def test_pkcs12_stores_are_taken_whatever_they_are_called(certificates: Certificates, tmp_path: Path) -> None:
    pem = certificates.issue("options-bob", {"CN": "Bob"}).read_bytes()
    authority = load_pem_x509_certificates(certificates.ca.read_bytes())
    key = load_pem_private_key(pem, None)
    encryption = BestAvailableEncryption(b"store-secret")
    keys, trusted = tmp_path / "keys.p12", tmp_path / "trusted.jks"
    keys.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"bob",
            key,  # type: ignore[arg-type]
            load_pem_x509_certificates(pem)[0],
            None,
            encryption,
        )
    )
    trusted.write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, authority, encryption))
    given = {
        "security_protocol": "SSL",
        "ssl_keystore_location": str(keys),
        "ssl_keystore_password": "store-secret",
        "ssl_truststore_location": str(trusted),
        "ssl_truststore_type": "JKS",
    }
    secure = security(**given, ssl_truststore_password="store-secret")
    assert secure.keystore_location == str(keys)
    assert secure.ca_pem is not None
    assert secure.ca_pem.encode() == certificates.ca.read_bytes()
    with pytest.raises(OptionError, match=r"option kafka\.ssl\.truststore\.location: no certificates can be read"):
        security(**given, ssl_truststore_password="wrong")


@pytest.mark.parametrize("kind", ["keystore", "truststore"])
def test_jks_is_refused_with_the_way_out(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    given = {"kafka.security.protocol": "SSL", f"kafka.ssl.{kind}.location": str(path)}
    message = refused(given)
    assert f"option kafka.ssl.{kind}.location: {path} is a JKS key store" in message
    assert "keytool -importkeystore" in message
    path.unlink()
    assert "cannot be read: No such file" in refused(given)
    path.write_bytes(b"neither")
    assert "is neither PEM nor PKCS#12" in refused(given)
