"""`headwater cluster features`: the feature levels of a cluster, raised once all brokers can."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from headwater.cli.shell.administration import cluster_client
from headwater.cli.shell.errors import CliError
from headwater.cli.shell.options import client_options, key_values, output_option
from headwater.cli.shell.output import print_rows

if TYPE_CHECKING:
    from headwater.logtier.client.cluster import ClusterClient
    from headwater.logtier.client.features import ClusterFeature

VERB: Final = "cluster features"
LEVEL_MAX: Final = 32_767

# Of UpdateFeatures.
_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
_UNSAFE_DOWNGRADE: Final = 3

_feature_option = click.option(
    "--feature", "wanted", multiple=True, metavar="NAME=LEVEL", help="Feature and its new level; repeatable."
)
_dry_run_option = click.option("--dry-run", is_flag=True, help="Only check whether the change is possible.")


@click.group(name="features")
def features() -> None:
    """Show and change the feature levels of a cluster (KIP-584)."""


@features.command()
@output_option
@client_options
def describe(output: str, bootstrap_servers: str | None) -> None:
    """Show each feature with its finalized level and the levels that all live brokers support."""
    from headwater.logtier.client.features import cluster_features

    with cluster_client(VERB, bootstrap_servers) as cluster:
        epoch, found = cluster_features(cluster)
    rows = [
        {
            "feature": each.name,
            "finalized_level": each.finalized,
            "supported_min": each.first,
            "supported_max": each.last,
            "can_be_raised": _can_be_raised(each),
            "epoch": epoch,
        }
        for each in found
    ]
    headings = {
        "feature": "FEATURE",
        "finalized_level": "FINALIZED",
        "supported_min": "MIN",
        "supported_max": "MAX",
        "can_be_raised": "CAN BE RAISED",
    }
    print_rows(rows, headings, output)


@features.command()
@_feature_option
@_dry_run_option
@client_options
def upgrade(wanted: tuple[str, ...], dry_run: bool, bootstrap_servers: str | None) -> None:
    """Raise feature levels; without --feature, all of them to the highest level that all live brokers support.

    The controller refuses a level that a known broker does not support, also one that is away.
    """
    from headwater.logtier.client.features import cluster_features

    levels = _levels(wanted)
    with cluster_client(VERB, bootstrap_servers) as cluster:
        if not levels:
            levels = {each.name: each.last for each in cluster_features(cluster)[1] if _can_be_raised(each)}
        if not levels:
            sys.stdout.write("all features have the highest level that all brokers support\n")
            return
        _change(cluster, levels, _UPGRADE, dry_run=dry_run)


@features.command()
@_feature_option
@click.option("--unsafe", is_flag=True, help="Permit a downgrade that loses metadata.")
@_dry_run_option
@client_options
def downgrade(wanted: tuple[str, ...], unsafe: bool, dry_run: bool, bootstrap_servers: str | None) -> None:
    """Lower the levels that --feature names."""
    levels = _levels(wanted)
    if not levels:
        raise CliError(f"{VERB} downgrade", "no feature is named", "add --feature NAME=LEVEL")
    with cluster_client(VERB, bootstrap_servers) as cluster:
        _change(cluster, levels, _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE, dry_run=dry_run)


def _can_be_raised(feature: ClusterFeature) -> bool:
    return feature.finalized < feature.last and feature.first <= feature.last


def _levels(wanted: tuple[str, ...]) -> dict[str, int]:
    levels = {}
    for name, text in key_values(wanted, "--feature").items():
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(LEVEL_MAX))
        if not is_number or int(text) > LEVEL_MAX:
            raise click.BadParameter(f"{text[:40]!r} is no level: use 0 to {LEVEL_MAX}", param_hint="--feature")
        levels[name] = int(text)
    return levels


def _change(cluster: ClusterClient, levels: Mapping[str, int], upgrade_type: int, *, dry_run: bool) -> None:
    from headwater.logtier.client.features import update_features

    update_features(cluster, levels, upgrade_type, validate_only=dry_run)
    for name, level in levels.items():
        sys.stdout.write(f"{name} {'can be' if dry_run else 'is'} finalized at level {level}\n")
