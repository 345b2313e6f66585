"""`headwater user`: SCRAM passwords of users, on running brokers or in the stored metadata of stopped ones.

If brokers require a password of every client, or of each other, the first user can only be created before they start.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.shell.administration import admin_client
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_options, output_option
from headwater.cli.shell.output import note, print_rows
from headwater.cli.shell.stored_metadata import StoredMetadata, stored_metadata_options, with_controller

if TYPE_CHECKING:
    from headwater.logtier.controller.controller import Controller
    from headwater.logtier.metadata.image import MetadataCache

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
DEFAULT_ITERATIONS = 8192
PASSWORD_BYTES_MAX = 1024


@click.group("user")
def app() -> None:
    """Set, list and delete SCRAM credentials of users."""


def _mechanism_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "-m",
        "--mechanism",
        "mechanisms",
        multiple=True,
        type=click.Choice(MECHANISMS),
        help="SCRAM mechanism; may be repeated.  [default: SCRAM-SHA-512]",
    )(function)


@app.command()
@click.argument("name")
@_mechanism_option
@click.option(
    "--iterations",
    type=click.IntRange(4096, 16_384),
    default=DEFAULT_ITERATIONS,
    show_default=True,
    help="Hash iterations; more make a stolen credential harder to crack.",
)
@stored_metadata_options
@client_options
def add(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    stored: StoredMetadata | None,
    bootstrap_servers: str | None,
) -> None:
    """Create a user, or change the password of one.

    The password is prompted for, or read as one line from standard input; it is never given on the command line.

    \b
    Examples:
      headwater user add admin --data headwater-data
      headwater user add broker --config broker.yaml
      headwater user add alice -m SCRAM-SHA-256 -b localhost:9092 --command-config admin.properties < password.txt
    """
    password = _password()
    for mechanism in mechanisms or ("SCRAM-SHA-512",):
        if stored is not None:
            _upsert_stored(stored, name, mechanism, iterations, password)
        else:
            _upsert(bootstrap_servers, name, mechanism, iterations, password)
        note(f"Set the password of {name} for {mechanism}.")


@app.command("list")
@stored_metadata_options
@output_option
@client_options
def list_users(stored: StoredMetadata | None, output: str, bootstrap_servers: str | None) -> None:
    """List users with SCRAM credentials, and their mechanisms."""
    found = with_controller("user", stored, _credentials) if stored is not None else _described(bootstrap_servers)
    rows = [
        {"user": user, "mechanism": mechanism, "iterations": iterations}
        for user, credentials in sorted(found.items())
        for mechanism, iterations in sorted(credentials.items())
    ]
    print_rows(rows, {"user": "USER", "mechanism": "MECHANISM", "iterations": "ITERATIONS"}, output)


@app.command()
@click.argument("name")
@_mechanism_option
@stored_metadata_options
@client_options
def delete(
    name: str, mechanisms: tuple[str, ...], stored: StoredMetadata | None, bootstrap_servers: str | None
) -> None:
    """Delete the credentials of a user; authenticated connections remain open."""
    for mechanism in mechanisms or ("SCRAM-SHA-512",):
        if stored is not None:
            _delete_stored(stored, name, mechanism)
        else:
            _delete(bootstrap_servers, name, mechanism)
        note(f"Deleted the password of {name} for {mechanism}.")


def _password() -> str:
    if sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if getpass.getpass("Again: ") != password:
            raise CliError("user add", "the two passwords differ", "try again")
    else:
        password = sys.stdin.readline(PASSWORD_BYTES_MAX + 2).removesuffix("\n").removesuffix("\r")
    if not password or len(password.encode()) > PASSWORD_BYTES_MAX:
        raise CliError("user add", f"the password is empty or longer than {PASSWORD_BYTES_MAX} bytes", "give another")
    return password


def _upsert(bootstrap_servers: str | None, name: str, mechanism: str, iterations: int, password: str) -> None:
    from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    info = ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], iterations)
    change = UserScramCredentialUpsertion(name, info, password.encode())
    admin = admin_client("user", bootstrap_servers)
    admin.answer("user", admin.client.alter_user_scram_credentials([change])[name])


def _delete(bootstrap_servers: str | None, name: str, mechanism: str) -> None:
    from confluent_kafka.admin import ScramMechanism, UserScramCredentialDeletion

    change = UserScramCredentialDeletion(name, ScramMechanism[mechanism.replace("-", "_")])
    admin = admin_client("user", bootstrap_servers)
    admin.answer("user", admin.client.alter_user_scram_credentials([change])[name])


def _described(bootstrap_servers: str | None) -> dict[str, dict[str, int]]:
    admin = admin_client("user", bootstrap_servers)
    described = admin.answer("user", admin.client.describe_user_scram_credentials())
    return {
        user: {info.mechanism.name.replace("_", "-"): info.iterations for info in found.scram_credential_infos}
        for user, found in described.items()
    }


async def _credentials(_: Controller, metadata: MetadataCache) -> dict[str, dict[str, int]]:
    return {
        user: {mechanism: credential.iterations for mechanism, credential in credentials.items()}
        for user, credentials in metadata.image.scram_credentials.items()
    }


def _upsert_stored(stored: StoredMetadata, name: str, mechanism: str, iterations: int, password: str) -> None:
    import hashlib
    import secrets

    from headwater.logtier.controller.scram_state import SCRAM_MECHANISMS, ScramUpsertion

    number = _number(SCRAM_MECHANISMS, mechanism)
    salt = secrets.token_bytes(24)
    hash_name = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)

    async def upsert(controller: Controller, _: MetadataCache) -> None:
        change = ScramUpsertion(name, number, iterations, salt, salted)
        _check(await controller.alter_scram_credentials([], [change]))

    with_controller("user", stored, upsert)


def _delete_stored(stored: StoredMetadata, name: str, mechanism: str) -> None:
    from headwater.logtier.controller.scram_state import SCRAM_MECHANISMS, ScramDeletion

    number = _number(SCRAM_MECHANISMS, mechanism)

    async def delete_credential(controller: Controller, _: MetadataCache) -> None:
        _check(await controller.alter_scram_credentials([ScramDeletion(name, number)], []))

    with_controller("user", stored, delete_credential)


def _number(mechanisms: Mapping[int, str], mechanism: str) -> int:
    return next(number for number, known in mechanisms.items() if known == mechanism)


def _check(results: Any) -> None:
    for result in results:
        if result.error is not None:
            raise CliError("user", result.error.message, exit_code=EXIT_FAILED)
