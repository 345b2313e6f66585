"""`headwater topic`: administration of topics, through the same module as the REST API."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import click

from headwater.api.topic_admin import ConfigChange, ErrorCode, TopicAdmin, TopicAdminError, TopicInfo, TopicRequest
from headwater.cli.shell.errors import CliError
from headwater.cli.shell.options import client_options, client_security, key_values, output_option, servers, settings
from headwater.cli.shell.output import format_table, note, print_rows


def _admin(bootstrap_servers: str | None) -> TopicAdmin:
    return TopicAdmin(servers(bootstrap_servers), settings().request_timeout_ms, client_security())


@click.group(name="topic")
def app() -> None:
    """Create, list, describe, alter and delete topics."""


@app.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-p", "--partitions", type=int, help="Number of partitions.  [default: the broker's num.partitions]")
@click.option(
    "-r",
    "--replication-factor",
    type=int,
    help="Number of replicas of each partition.  [default: the broker's default]",
)
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Topic config; may be repeated.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing for a topic that exists.")
@click.option("--dry-run", is_flag=True, help="Validate the request without creating anything.")
@client_options
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
    bootstrap_servers: str | None,
) -> None:
    """Create topics."""
    values = key_values(configs, "--config")
    admin = _admin(bootstrap_servers)
    for name in names:
        request = TopicRequest(name, partitions, replication_factor, values)
        try:
            topic = admin.create_topic(request, validate_only=dry_run)
        except TopicAdminError as error:
            if not (if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                raise
            note(f"Topic {name} exists already.")
            continue
        if topic is None:
            note(f"Topic {name} could be created (dry run: it was not).")
        else:
            note(
                f"Created topic {name}: {topic.partitions_count} partitions, "
                f"replication factor {topic.replication_factor}."
            )


@app.command(name="list")
@click.option("--internal", is_flag=True, help="Include internal topics.")
@output_option
@client_options
def list_topics(internal: bool, output: str, bootstrap_servers: str | None) -> None:
    """List the topics."""
    topics = [topic for topic in _admin(bootstrap_servers).list_topics() if internal or not _is_internal(topic)]
    rows = [
        {
            "topic": topic.name,
            "partitions": topic.partitions_count,
            "replicas": topic.replication_factor,
            "internal": _is_internal(topic),
            "topic_id": topic.topic_id,
        }
        for topic in topics
    ]
    columns = {"topic": "TOPIC", "partitions": "PARTITIONS", "replicas": "REPLICAS"}
    print_rows(rows, columns | ({"internal": "INTERNAL"} if internal else {}), output)


@app.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--all-configs", is_flag=True, help="Include configs that have their default value.")
@output_option
@client_options
def describe(names: tuple[str, ...], all_configs: bool, output: str, bootstrap_servers: str | None) -> None:
    """Show partitions, offsets and configs of topics."""
    admin = _admin(bootstrap_servers)
    described = [_described(admin, name, all_configs) for name in names]
    if output != "table":
        print_rows(described, {}, output)
        return
    for position, topic in enumerate(described):
        sys.stdout.write("\n" if position else "")
        _print_topic(topic)
    sys.stdout.flush()


@app.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted without deleting it.")
@client_options
def delete(names: tuple[str, ...], yes: bool, dry_run: bool, bootstrap_servers: str | None) -> None:
    """Delete topics and all their messages, after confirmation."""
    admin = _admin(bootstrap_servers)
    unique = list(dict.fromkeys(names))
    # Every name is looked up first: one that is not there must not leave the others half done.
    for name in unique:
        admin.describe_topic(name)
    messages = {name: sum(p.latest - p.earliest for p in admin.offsets(name)) for name in unique}
    summary = ", ".join(f"{name} (offsets span {count} messages)" for name, count in messages.items())
    if dry_run:
        note(f"Would delete {summary} (dry run: nothing was deleted).")
        return
    if not yes:
        if not sys.stdin.isatty():
            raise CliError("topic delete", f"would delete {summary}", "give --yes to confirm")
        click.confirm(f"Delete {summary}? This cannot be undone.", abort=True, err=True)
    admin.delete_topics(unique)
    note(f"Deleted {', '.join(unique)}.")


@app.command()
@click.argument("name")
@click.option("-p", "--partitions", type=int, help="New total number of partitions, which must be larger.")
@click.option("-s", "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Set a config; may be repeated.")
@click.option("--unset", multiple=True, metavar="KEY", help="Reset a config to its default; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Validate the request without changing anything.")
@client_options
def alter(
    name: str,
    partitions: int | None,
    changes: tuple[str, ...],
    unset: tuple[str, ...],
    dry_run: bool,
    bootstrap_servers: str | None,
) -> None:
    """Change the configs of a topic, or add partitions.

    After partitions are added, new messages of a key may go to another partition than its older messages.
    """
    wanted = [ConfigChange(key, value) for key, value in key_values(changes, "--set").items()]
    wanted += [ConfigChange(key, None) for key in unset]
    if partitions is None and not wanted:
        raise CliError("topic alter", "no change is given", "give --partitions, --set or --unset")
    admin = _admin(bootstrap_servers)
    done = "could be altered (dry run: it was not)" if dry_run else "altered"
    if wanted:
        admin.alter_configs(name, wanted, validate_only=dry_run)
    if partitions is not None:
        admin.create_partitions(name, partitions, validate_only=dry_run)
    parts = [
        f"{change.name}={change.value}" if change.value is not None else f"{change.name} unset" for change in wanted
    ]
    parts += [f"{partitions} partitions"] if partitions is not None else []
    note(f"Topic {name} {done}: {', '.join(parts)}.")


def _is_internal(topic: TopicInfo) -> bool:
    # Brokers flag `__consumer_offsets`; names that begin so are internal by custom.
    return topic.is_internal or topic.name.startswith("__")


def _described(admin: TopicAdmin, name: str, all_configs: bool) -> dict[str, Any]:
    topic = admin.describe_topic(name)
    offsets = {entry.partition: entry for entry in admin.offsets(name)}
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "internal": _is_internal(topic),
        "replicas": topic.replication_factor,
        "partitions": [
            asdict(info)
            | {"replicas": list(info.replicas), "isr": list(info.isr)}
            | {"earliest_offset": offsets[info.partition].earliest, "latest_offset": offsets[info.partition].latest}
            for info in topic.partitions
        ],
        "configs": [
            {"name": config.name, "value": config.value, "source": config.source, "is_default": config.is_default}
            for config in admin.configs(name)
            if all_configs or not config.is_default
        ],
    }


def _print_topic(topic: dict[str, Any]) -> None:
    partitions = topic["partitions"]
    messages = sum(part["latest_offset"] - part["earliest_offset"] for part in partitions)
    sys.stdout.write(f"topic {topic['topic']}: {len(partitions)} partitions, replication factor {topic['replicas']}, ")
    sys.stdout.write(f"offsets span {messages} messages\n")
    columns = {
        "partition": "PARTITION",
        "leader": "LEADER",
        "replicas": "REPLICAS",
        "isr": "ISR",
        "earliest_offset": "EARLIEST",
        "latest_offset": "LATEST",
    }
    sys.stdout.write(format_table(partitions, columns))
    if topic["configs"]:
        columns = {"name": "CONFIG", "value": "VALUE", "source": "SOURCE"}
        sys.stdout.write(format_table(topic["configs"], columns))
