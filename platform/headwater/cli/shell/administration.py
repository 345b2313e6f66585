"""Shared parts of verbs that administer running brokers: their clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_security, servers, settings

if TYPE_CHECKING:
    from headwater.logtier.client.cluster import ClusterClient

CALLBACK_WAIT_S: Final = 0.02
"""Interval between calls of librdkafka's callbacks while an answer is due."""


def reachable_servers(verb: str, bootstrap_servers: str | None) -> str:
    """Return the bootstrap servers. Raises CliError if no broker answers."""
    from headwater.api.connection import BootstrapServersError, BrokerUnreachableError, require_reachable

    brokers = servers(bootstrap_servers)
    try:
        require_reachable(brokers)
    except BootstrapServersError as error:
        raise CliError(verb, str(error)) from None
    except BrokerUnreachableError as error:
        raise CliError(
            verb,
            f"no broker answers at {error}",
            "start one with `headwater up`, or change the metadata of a stopped one: --data, or --config in a cluster",
            exit_code=EXIT_FAILED,
        ) from None
    return brokers


class AdminClient:
    """librdkafka's administration client; keeps the reason of refused connections, which only a callback receives."""

    def __init__(self, brokers: str) -> None:
        from confluent_kafka.admin import AdminClient

        from headwater.api.connection import Outage, client_properties

        self._outage = Outage()
        properties = client_properties(brokers, settings().request_timeout_ms, client_security())
        self.client: Any = AdminClient(properties | {"error_cb": self._outage})

    def answer(self, verb: str, future: Any) -> Any:
        """Wait for the broker's answer. Raises CliError if the broker refused the request or the connection."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + 2 * settings().request_timeout_ms / 1000 + 5
        while not future.done() and self._outage.refusal is None and time.monotonic() < deadline:
            self.client.poll(CALLBACK_WAIT_S)
        if not future.done() and self._outage.refusal is not None:
            raise CliError(verb, self._outage.refusal, exit_code=EXIT_FAILED)
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise CliError(verb, "no broker answered in time", exit_code=EXIT_FAILED) from None
        except KafkaException as error:
            reason = error.args[0].str().removeprefix("Broker: ").removeprefix("Local: ")
            raise CliError(verb, reason, exit_code=EXIT_FAILED) from None


def admin_client(verb: str, bootstrap_servers: str | None) -> AdminClient:
    """Return a client for the requests that librdkafka supports."""
    return AdminClient(reachable_servers(verb, bootstrap_servers))


@contextmanager
def cluster_client(
    verb: str, bootstrap_servers: str | None, *, api_timeout_ms: int | None = None
) -> Iterator[ClusterClient]:
    """Provide Headwater's own client, for requests that librdkafka lacks; its errors become lines for the user.

    Args:
        api_timeout_ms: How long a request is repeated while leaders move; that of one request by default.
    """
    from headwater.api.connection import BootstrapServersError, parse_bootstrap_servers
    from headwater.logtier.client.cluster import ClientConfig, ClusterClient
    from headwater.logtier.client.errors import AuthenticationError, BrokerConnectionError, ClientError
    from headwater.logtier.client.security import ClientSecurity
    from headwater.logtier.config import ConfigError

    try:
        addresses = tuple(parse_bootstrap_servers(servers(bootstrap_servers)))
    except BootstrapServersError as error:
        raise CliError(verb, str(error)) from None
    timeout_ms = settings().request_timeout_ms
    try:
        config = ClientConfig(
            addresses,
            request_timeout_ms=timeout_ms,
            api_timeout_ms=timeout_ms if api_timeout_ms is None else api_timeout_ms,
            bootstrap_timeout_ms=0,  # somebody waits: one try is enough, as in `reachable_servers`
            security=ClientSecurity.from_properties(client_security()),
        )
        with ClusterClient(config) as cluster:
            yield cluster
    except ConfigError as error:
        raise CliError(verb, str(error), "correct the file of --command-config") from None
    except AuthenticationError as error:
        fix = "say how to connect by --command-config"
        raise CliError(verb, str(error), fix, exit_code=EXIT_FAILED) from None
    except BrokerConnectionError as error:
        fix = "start one with `headwater up`, or name another with --bootstrap-servers"
        raise CliError(verb, str(error), fix, exit_code=EXIT_FAILED) from None
    except ClientError as error:
        raise CliError(verb, str(error), exit_code=EXIT_FAILED) from None
