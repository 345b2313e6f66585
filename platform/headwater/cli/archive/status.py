"""`headwater archive plan` and `headwater archive status`: archives beside their topics, without Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from headwater.cli.archive.loading import NO_ARCHIVES, archive_options, load_archives, reported_archive_errors
from headwater.cli.shell.errors import EXIT_USER
from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from headwater.pipelines.archive.status import ArchiveStatus

output_option = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)


@click.command("plan")
@archive_options
@output_option
def plan(
    where: str,
    topics: tuple[str, ...],
    assignments: tuple[str, ...],
    registry: str | None,
    bootstrap_servers: str | None,
    output: str,
) -> None:
    """Show what `run` would do: tables to make, offsets to add, and problems. Changes nothing."""
    found = _statuses(where, topics, assignments, bootstrap_servers, registry)
    if output == "json":
        _print_json(found)
    else:
        for each in found:
            sys.stdout.write(f"{_planned(each)}\n")
    if any(each.problem for each in found):
        raise SystemExit(EXIT_USER)


@click.command("status")
@archive_options
@output_option
def status(
    where: str,
    topics: tuple[str, ...],
    assignments: tuple[str, ...],
    registry: str | None,
    bootstrap_servers: str | None,
    output: str,
) -> None:
    """Show how far the tables are."""
    found = _statuses(where, topics, assignments, bootstrap_servers, registry)
    if output == "json":
        _print_json(found)
        return
    for each in found:
        sys.stdout.write(f"{_stands(each)}\n")
        for partition, end in sorted(each.log_end.items()):
            archived = each.archived.get(partition)
            at = "not begun" if archived is None else f"{archived:,}"
            sys.stdout.write(f"  {partition}: {at} of {each.log_start[partition]:,} to {end:,}\n")


def _statuses(
    where: str,
    topics: Sequence[str],
    assignments: Sequence[str],
    bootstrap_servers: str | None,
    registry: str | None,
) -> list[ArchiveStatus]:
    from headwater.pipelines.archive.status import refused_status, status_of

    with reported_archive_errors():
        known, brokers = load_archives(where, assignments, topics, bootstrap_servers, registry)
        found = [status_of(each, brokers, overrules=each.topic in known.overruled) for each in known.specs]
        found += [refused_status(topic, refusal.reason) for topic, refusal in known.refused.items()]
    if not found:
        note(NO_ARCHIVES)
    return found


def _print_json(found: Sequence[ArchiveStatus]) -> None:
    sys.stdout.write(json.dumps([each.value() for each in found], ensure_ascii=False, indent=1) + "\n")


def _planned(found: ArchiveStatus) -> str:
    if found.problem:
        return f"{found.topic}: {found.problem}"
    by = f"; declared by {found.declared}" if found.declared != "the file" else ""
    if found.version < 0:
        return f"{found.topic}: makes the table {found.table}, and adds {found.to_add:,} offsets{by}"
    return f"{found.topic}: adds {found.to_add:,} offsets to {found.table} (version {found.version}){by}"


def _stands(found: ArchiveStatus) -> str:
    if not found.table:
        return f"{found.topic}: {found.problem}"
    if found.version < 0:
        return f"{found.topic}: no table at {found.table}" + (f"; {found.problem}" if found.problem else "")
    ago = f"committed {found.committed_s:,.0f} s ago" if found.committed_s is not None else ""
    behind = f"{found.to_add:,} offsets behind" if found.to_add else "as far as the topic"
    problem = f"; {found.problem}" if found.problem else ""
    return f"{found.topic}: {found.table}, {found.mode}, version {found.version}, {ago}, {behind}{problem}"
