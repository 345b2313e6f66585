"""`headwater quotas`: client quotas, on a running broker or in the folder of a stopped one.

librdkafka's administration client has no quotas, so Headwater's own client queries a running broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headwater.cli.shell.administration import cluster_client, reachable_servers
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_options, key_values, output_option
from headwater.cli.shell.output import note, print_rows
from headwater.cli.shell.stored_metadata import StoredMetadata, stored_metadata_options, with_controller

if TYPE_CHECKING:
    from headwater.logtier.config.quotas import ClientQuota, QuotaEntity
    from headwater.logtier.controller.controller import Controller
    from headwater.logtier.metadata.image import MetadataCache
    from headwater.logtier.protocol.errors import KafkaError

F = TypeVar("F", bound=Callable[..., Any])

#: How the default of a type is named on the command line.
DEFAULT: Final = "*"


@click.group("quotas")
def app() -> None:
    """List and set client quotas."""


def _entity_options(function: F) -> F:
    for decorate in (
        click.option("--user", metavar="NAME", help="User, or * for all users without a quota of their own."),
        click.option(
            "--client-id", metavar="ID", help="Client id, or * for all client ids without a quota of their own."
        ),
        click.option(
            "--ip", metavar="ADDRESS", help="IP address, or * for all addresses without a quota of their own."
        ),
    )[::-1]:
        function = decorate(function)
    return function


@app.command("list")
@_entity_options
@stored_metadata_options
@output_option
@client_options
def list_quotas(
    output: str, stored: StoredMetadata | None, bootstrap_servers: str | None, **entity: str | None
) -> None:
    """List all quotas, or those of exactly the given entity."""
    found = _all_stored(stored) if stored is not None else _described(bootstrap_servers)
    wanted = _entity(entity)
    rows = [
        {**{kind: DEFAULT if name is None else name for kind, name in quota.entity}, "quota": key, "value": value}
        for quota in sorted(found, key=str)
        if not wanted or quota.entity == wanted
        for key, value in sorted(quota.values.items())
    ]
    columns = {"user": "USER", "client-id": "CLIENT-ID", "ip": "IP", "quota": "QUOTA", "value": "VALUE"}
    print_rows(rows, columns, output)


@app.command("set")
@_entity_options
@click.argument("quotas", nargs=-1, metavar="[QUOTA=VALUE]...")
@click.option("--unset", multiple=True, metavar="QUOTA", help="Remove a quota; may be repeated.")
@stored_metadata_options
@client_options
def set_quotas(
    quotas: tuple[str, ...],
    unset: tuple[str, ...],
    stored: StoredMetadata | None,
    bootstrap_servers: str | None,
    **entity: str | None,
) -> None:
    """Set quotas of a user, a client id, a user with a client id, or an IP address.

    Quotas are producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate and, for addresses,
    connection_creation_rate. Rates are per second.

    \b
    Examples:
      headwater quotas set --user alice producer_byte_rate=1000000
      headwater quotas set --user '*' --client-id batch request_percentage=20
      headwater quotas set --ip '*' connection_creation_rate=10
    """
    changes: list[tuple[str, float | None]] = [(key, _number(key, text)) for key, text in _values(quotas).items()]
    changes += [(key, None) for key in unset]
    wanted = _entity(entity)
    if not wanted or not changes:
        raise CliError("quotas set", "no entity or no quota is given", "give --user (or another) and a quota")
    if stored is not None:
        _set_stored(stored, wanted, changes)
    else:
        _set(bootstrap_servers, wanted, changes)
    who = ", ".join(f"{kind} {DEFAULT if name is None else name}" for kind, name in wanted)
    what = ", ".join(f"{key} unset" if value is None else f"{key}={value:.15g}" for key, value in changes)
    note(f"Set for {who}: {what}.")


def _values(quotas: tuple[str, ...]) -> dict[str, str]:
    return key_values(quotas, "QUOTA=VALUE")


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CliError("quotas set", f"{key}: {text[:80]!r} is not a number") from None


def _entity(given: dict[str, str | None]) -> QuotaEntity:
    from headwater.logtier.config.quotas import entity_of

    parts = {kind.replace("_", "-"): name for kind, name in given.items() if name is not None}
    return entity_of({kind: None if name == DEFAULT else name for kind, name in parts.items()})


def _call(verb: str, bootstrap_servers: str | None, api_key: int, fields: dict[str, Any]) -> Any:
    from headwater.logtier.client.messages import kio_request

    brokers = reachable_servers(verb, bootstrap_servers)
    with cluster_client(verb, brokers) as cluster:
        connection = cluster.any_connection()
        return connection.call(kio_request(api_key, connection.version(api_key), fields))


def _described(bootstrap_servers: str | None) -> list[ClientQuota]:
    from headwater.logtier.client.messages import ApiKey
    from headwater.logtier.config.quotas import ClientQuota, entity_of

    asked = {"components": (), "strict": False}
    response = _call("quotas list", bootstrap_servers, ApiKey.DESCRIBE_CLIENT_QUOTAS, asked)
    if response.error_code:
        raise CliError("quotas list", _reason(response), exit_code=EXIT_FAILED)
    return [
        ClientQuota(
            entity_of({part.entity_type: part.entity_name for part in entry.entity}),
            {value.key: float(value.value) for value in entry.values},
        )
        for entry in response.entries or ()
    ]


def _set(bootstrap_servers: str | None, entity: QuotaEntity, changes: list[tuple[str, float | None]]) -> None:
    from headwater.logtier.client.messages import ApiKey

    entry = {
        "entity": tuple({"entity_type": kind, "entity_name": name} for kind, name in entity),
        "ops": tuple({"key": key, "value": value or 0.0, "remove": value is None} for key, value in changes),
    }
    changed = {"entries": (entry,), "validate_only": False}
    response = _call("quotas set", bootstrap_servers, ApiKey.ALTER_CLIENT_QUOTAS, changed)
    for answered in response.entries:
        if answered.error_code:
            raise CliError("quotas set", _reason(answered), exit_code=EXIT_FAILED)


def _reason(answered: Any) -> str:
    return str(answered.error_message or answered.error_code.name)


def _all_stored(stored: StoredMetadata) -> list[ClientQuota]:
    async def read(_: Controller, metadata: MetadataCache) -> list[ClientQuota]:
        return list(metadata.image.client_quotas.values())

    return with_controller("quotas list", stored, read)


def _set_stored(stored: StoredMetadata, entity: QuotaEntity, changes: list[tuple[str, float | None]]) -> None:
    from headwater.logtier.controller.quota_state import QuotaAlteration

    async def alter(controller: Controller, _: MetadataCache) -> list[KafkaError | None]:
        return await controller.alter_client_quotas([QuotaAlteration(entity, changes)])

    for error in with_controller("quotas set", stored, alter):
        if error is not None:
            raise CliError("quotas set", error.message, exit_code=EXIT_FAILED)
