"""The options of `headwater cluster drain`, `balance`, `replicate` and `unregister`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headwater.cli.reassignment.band import BalanceBand
from headwater.cli.shell.options import client_options, output_option

if TYPE_CHECKING:
    from headwater.cli.reassignment.operations import PlanRunOptions

__all__ = ["balance", "drain", "replicate", "unregister"]

CONCURRENT_MOVES: Final = 5
CONCURRENT_MOVES_MAX: Final = 1_000
#: Replicas of new topics on three brokers and more, and the most that a partition can usefully have.
REPLICAS: Final = 3
REPLICAS_MAX: Final = 99
#: The least throttle: a fetch of one large batch must not use up the rate of many seconds.
THROTTLE_BYTES_MIN: Final = 1_000

F = TypeVar("F", bound=Callable[..., Any])

_BROKER = click.IntRange(0)


def _run_options(verb: str) -> Callable[[F], F]:
    """Add the options of a run; the function receives `options`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_options(
            *,
            bootstrap_servers: str | None,
            concurrent_moves: int,
            throttle_bytes: int | None,
            yes: bool,
            dry_run: bool,
            output: str,
            **own: Any,
        ) -> None:
            from headwater.cli.reassignment.operations import PlanRunOptions

            options = PlanRunOptions(verb, bootstrap_servers, concurrent_moves, throttle_bytes, yes, dry_run, output)
            function(options=options, **own)

        decorated: Any = with_options
        for option in (
            client_options,
            output_option,
            click.option("--dry-run", is_flag=True, help="Show the plan and change nothing."),
            click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation."),
            click.option(
                "--concurrent-moves",
                type=click.IntRange(1, CONCURRENT_MOVES_MAX),
                default=CONCURRENT_MOVES,
                show_default=True,
                help="Replicas that one broker may send or receive at a time.",
            ),
            click.option(
                "--throttle",
                "throttle_bytes",
                type=click.IntRange(THROTTLE_BYTES_MIN),
                metavar="BYTES",
                help="Bytes a second that each broker may send, and receive, for these moves.  [default: no limit]",
            ),
        ):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


@click.command()
@click.argument("brokers", nargs=-1, required=True, type=_BROKER, metavar="BROKER...")
@click.option("--allow-fewer-racks", is_flag=True, help="Move replicas also where fewer racks than now would have one.")
@_run_options("cluster drain")
def drain(brokers: tuple[int, ...], allow_fewer_racks: bool, options: PlanRunOptions) -> None:
    """Move all replicas of brokers to the other brokers, so that these can be removed.

    Exit code 1 if a replica stays. A drain that was interrupted continues when the command is run again.
    """
    from headwater.cli.reassignment import operations

    operations.drain(options, brokers, allow_fewer_racks=allow_fewer_racks)


@click.command()
@click.option(
    "--threshold",
    "threshold_percent",
    type=click.IntRange(1, 100),
    default=BalanceBand().threshold_percent,
    show_default=True,
    metavar="PERCENT",
    help="Difference from the mean up to which a broker is left as it is.",
)
@_run_options("cluster balance")
def balance(threshold_percent: int, options: PlanRunOptions) -> None:
    """Move replicas and leaders until brokers have about the same bytes, replicas and leaders.

    Racks come first: a partition's replicas get into as many racks as there are. A balance that was interrupted
    continues when the command is run again.
    """
    from headwater.cli.reassignment import operations

    operations.balance(options, threshold_percent)


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--replicas",
    type=click.IntRange(2, REPLICAS_MAX),
    default=REPLICAS,
    show_default=True,
    metavar="N",
    help="Replicas that each partition has at least.",
)
@_run_options("cluster replicate")
def replicate(topics: tuple[str, ...], replicas: int, options: PlanRunOptions) -> None:
    """Add replicas to partitions that have fewer than N, of some topics or of all, internal ones included.

    Topics of a node that became a cluster have one replica. Present replicas and preferred leaders stay. Exit code 1 if
    a partition gets fewer. A run that was interrupted continues when the command is run again.
    """
    from headwater.cli.reassignment import operations

    operations.replicate(options, topics, replicas)


@click.command()
@click.argument("broker", type=_BROKER, metavar="BROKER")
@client_options
def unregister(broker: int, bootstrap_servers: str | None) -> None:
    """Remove the registration of a broker that was drained and stopped: no new topic gets replicas on it."""
    from headwater.cli.reassignment import operations

    operations.unregister("cluster unregister", bootstrap_servers, broker)
