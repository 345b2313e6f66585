"""The brokers and their connection properties. Pure.

Spark shows a source's options in plans, and may show them in logs. Secrets are therefore no options: the data source
gets the path of a file of Kafka client properties and reads it itself, on the driver.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypeAlias

from headwater.pipelines.datasource import COMMAND_CONFIG_OPTION


@dataclass(frozen=True, slots=True)
class SecuredBrokers:
    """Brokers with a file of connection properties (`security.*`, `sasl.*`, `ssl.*`); `command_config` is its path."""

    bootstrap_servers: str
    command_config: str


Brokers: TypeAlias = str | SecuredBrokers
"""Addresses, `host:port,…`; a plain text stands for brokers without TLS and SASL."""


def brokers(bootstrap_servers: str, command_config: str = "") -> Brokers:
    """Brokers by their addresses and the path of a properties file, '' for none."""
    if not command_config:
        return bootstrap_servers
    return SecuredBrokers(bootstrap_servers, os.path.abspath(command_config))


def connection_options(where: Brokers) -> dict[str, str]:
    """Options of `format("headwater")`.

    >>> connection_options("localhost:9092")
    {'kafka.bootstrap.servers': 'localhost:9092'}
    """
    if isinstance(where, str):
        return {"kafka.bootstrap.servers": where}
    return {"kafka.bootstrap.servers": where.bootstrap_servers, COMMAND_CONFIG_OPTION: where.command_config}
