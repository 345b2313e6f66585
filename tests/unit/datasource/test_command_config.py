"""How to connect, said by a file: the data source reads it itself, so that Spark never has its secrets as options."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.pipelines.datasource import COMMAND_CONFIG_OPTION
from headwater.pipelines.datasource.brokers import SecuredBrokers, brokers, connection_options
from headwater.pipelines.datasource.errors import OptionError
from headwater.pipelines.datasource.options import ReadOptions, WriteOptions

PASSWORD = "correct-horse"


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "client.properties"
        path.write_text(text)
        return path

    return write


def secured(path: Path) -> dict[str, str]:
    return connection_options(brokers("localhost:9093", str(path)))


def test_readers_and_writers_connect_as_the_file_says(config: Callable[[str], Path]) -> None:
    path = config(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password={PASSWORD}\n"
    )
    options = secured(path)
    assert PASSWORD not in str(options)
    for client in (
        ReadOptions.parse(options | {"subscribe": "t"}).client,
        WriteOptions.parse(options | {"topic": "t"}).client,
    ):
        assert (client.security.protocol, client.security.username) == ("SASL_PLAINTEXT", "a")
        assert client.security.password == PASSWORD
        assert PASSWORD not in repr(client)
        assert pickle.loads(pickle.dumps(client)) == client


def test_the_file_may_state_the_rack_and_an_option_has_precedence(config: Callable[[str], Path]) -> None:
    options = secured(config("client.rack=a\n")) | {"subscribe": "t"}
    assert ReadOptions.parse(options).client.rack == "a"
    assert ReadOptions.parse(options | {"kafka.client.rack": "b"}).client.rack == "b"
    assert ReadOptions.parse({"kafka.bootstrap.servers": "b:1", "subscribe": "t"}).client.rack == ""


def test_without_a_file_brokers_are_their_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert brokers("localhost:9092") == "localhost:9092"
    monkeypatch.chdir(tmp_path)
    assert brokers("b:1", "c.properties") == SecuredBrokers("b:1", str(tmp_path / "c.properties"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"sasl.pasword={PASSWORD}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n", "needs a user and a password"),
        ("security.protocol=TELNET\n", "security.protocol: 'TELNET' is none of"),
        ("no property\n", "line 1 is not of the form name=value"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_without_its_secrets(
    config: Callable[[str], Path], text: str, said: str
) -> None:
    with pytest.raises(OptionError, match=said) as refused:
        ReadOptions.parse(secured(config(text)) | {"subscribe": "t"})
    assert COMMAND_CONFIG_OPTION in str(refused.value)
    assert PASSWORD not in str(refused.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none\.properties: cannot be read"):
        ReadOptions.parse(secured(tmp_path / "none.properties") | {"subscribe": "t"})


def test_file_and_options_are_not_given_both(config: Callable[[str], Path]) -> None:
    options = secured(config("security.protocol=PLAINTEXT\n"))
    with pytest.raises(OptionError, match=r"leave out kafka\.security\.protocol"):
        ReadOptions.parse(options | {"subscribe": "t", "kafka.security.protocol": "SSL"})
