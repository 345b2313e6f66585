"""`headwater dead-letters`: shows records that pipelines could not process, and writes them back."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headwater.cli.messages.dead_letter_client import DeadLetterClient, dead_letter_client
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_options
from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from headwater.pipelines.dead_letters.records import DeadLetter, DeadLetterFilter

F = TypeVar("F", bound=Callable[..., Any])

LIMIT: Final = 20
"""Dead letters that `show` prints by default."""

CHUNK_DEAD_LETTERS: Final = 500
"""Dead letters in one transaction of `replay`: after a crash, every transaction is complete or absent."""

VALUE_LENGTH_MAX: Final = 300
"""Characters of a value shown in text output; JSON contains the whole value."""


def _filters(function: F) -> F:
    """Add the options that select dead letters."""
    options = [
        click.option(
            "--since",
            metavar="TIMESTAMP",
            help="Written at or after this timestamp: 2026-01-01T00:00:00Z or @1767225600000.",
        ),
        click.option(
            "--error", "errors", multiple=True, metavar="TEXT", help="The error contains this text; may be repeated."
        ),
        click.option("--stage", metavar="NAME", help="Written by this stage."),
        click.option("--expectation", metavar="NAME", help="Rows that do not meet this expectation."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.group("dead-letters", context_settings={"help_option_names": ["-h", "--help"]})
def app() -> None:
    """Show records that pipelines could not process, and write them back."""


@app.command()
@click.argument("source", metavar="TOPIC|PIPELINE")
@_filters
@click.option("-n", "--limit", type=click.IntRange(1), default=LIMIT, show_default=True, help="Maximum number to show.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "jsonl"]), default="text", show_default=True)
@client_options
def show(
    source: str,
    since: str | None,
    errors: tuple[str, ...],
    stage: str | None,
    expectation: str | None,
    limit: int,
    output: str,
    bootstrap_servers: str | None,
) -> None:
    """Print the dead letters of a topic (its name, or that of its dead-letter topic) or a pipeline (its name or file).

    A dead letter holds the record, its source, and the reason why it could not be processed.
    """
    found: list[DeadLetter] = []
    more = False
    with dead_letter_client("dead-letters show", bootstrap_servers) as client:
        topics, chosen = _chosen(client, source, since, errors, stage, expectation)
        for topic in topics:
            for dead_letter in client.dead_letters(topic, chosen.since_ms):
                if not chosen.takes(dead_letter):
                    continue
                if len(found) == limit:
                    more = True
                    break
                found.append(dead_letter)
                if output == "jsonl":
                    sys.stdout.write(json.dumps(dead_letter.as_dict(), ensure_ascii=False) + "\n")
                elif output == "text":
                    sys.stdout.write(describe(dead_letter))
            if more:
                break
    if output == "json":
        sys.stdout.write(json.dumps([each.as_dict() for each in found], indent=2, ensure_ascii=False) + "\n")
    if more:
        note(f"there are more than {limit}; raise --limit to see them")
    elif not found:
        note(f"no dead letters in {', '.join(topics)}")


@app.command()
@click.argument("source", metavar="TOPIC|PIPELINE")
@_filters
@click.option("--to", metavar="TOPIC", help="Write to this topic instead of the source topic.")
@click.option("--dry-run", is_flag=True, help="Show what would be written without writing it.")
@client_options
def replay(
    source: str,
    since: str | None,
    errors: tuple[str, ...],
    stage: str | None,
    expectation: str | None,
    to: str | None,
    dry_run: bool,
    bootstrap_servers: str | None,
) -> None:
    """Write the records of dead letters back to their source topics, with the same key, value and headers.

    Replayed dead letters are recorded as offsets of the consumer group headwater.replay.TOPIC, in the same transaction
    as the records: a second replay writes only dead letters that were not replayed before. The header
    headwater.replayed counts the replays of a record.
    """
    from headwater.pipelines.dead_letters.records import METADATA_BYTES_MAX

    written: dict[str, int] = {}
    without = 0
    with dead_letter_client("dead-letters replay", bootstrap_servers) as client:
        topics, chosen = _chosen(client, source, since, errors, stage, expectation)
        if to is not None:
            client.partitions(to)
        for topic in topics:
            run = _Replay(client, topic, to, dry_run=dry_run)
            try:
                for dead_letter in client.dead_letters(topic, None, run.remembered):
                    run.take(dead_letter, is_meant=chosen.takes(dead_letter))
                run.finish()
            except _TooManyGapsError:
                raise CliError(
                    "dead-letters replay",
                    f"{topic}: {sum(run.written.values())} records are written back; the dead letters left out "
                    f"between them no longer fit the metadata of the group {run.group} ({METADATA_BYTES_MAX} bytes)",
                    "replay the dead letters before them first, with another filter or without one",
                    exit_code=EXIT_FAILED,
                ) from None
            for target, count in run.written.items():
                written[target] = written.get(target, 0) + count
            without += run.without_source
    verb = "would be written back" if dry_run else "written back"
    for target, count in written.items():
        note(f"{target}: {count:,} records {verb}")
    if not written:
        note(f"nothing to write back in {', '.join(topics)}")
    if without:
        note(f"{without:,} dead letters have no source topic and are left out; --to TOPIC replays them, too")


class _TooManyGapsError(Exception):
    """The replayed offsets do not fit the metadata of a committed offset."""


class _Replay:
    """The replay of one dead-letter topic, in transactions of several dead letters each."""

    def __init__(self, client: DeadLetterClient, topic: str, to: str | None, *, dry_run: bool) -> None:
        from headwater.pipelines.dead_letters.records import replay_group

        self.group = replay_group(topic)
        self.remembered = client.remembered(topic, self.group)
        self.written: dict[str, int] = {}
        self.without_source = 0
        self._client = client
        self._topic = topic
        self._to = to
        self._dry_run = dry_run
        self._chunk: list[DeadLetter] = []
        self._seen: set[tuple[str, int, int]] = set()
        self._next: dict[int, int] = {}

    def take(self, dead_letter: DeadLetter, *, is_meant: bool) -> None:
        """Add a dead letter, in order within each partition."""
        done = self.remembered[dead_letter.partition]
        between = self._next.get(dead_letter.partition, done.offset)
        if between < dead_letter.offset:
            done.add(between, dead_letter.offset - 1)  # no dead letters: markers of transactions, aborted records
        self._next[dead_letter.partition] = dead_letter.offset + 1
        if dead_letter.offset in done or not is_meant:
            return
        if self._to is None and dead_letter.source is None:
            self.without_source += 1
            return
        self._chunk.append(dead_letter)
        if len(self._chunk) >= CHUNK_DEAD_LETTERS:
            self.finish()

    def finish(self) -> None:
        """Write the added records, and commit their offsets, in one transaction."""
        from headwater.pipelines.dead_letters.records import METADATA_BYTES_MAX, written_back

        chunk, self._chunk = self._chunk, []
        if not chunk:
            return
        records = []
        for dead_letter in chunk:
            self.remembered[dead_letter.partition].add(dead_letter.offset)
            if self._to is None and dead_letter.source is not None:
                if dead_letter.source in self._seen:
                    continue  # several stages have refused one record: it is written once
                self._seen.add(dead_letter.source)
            target = self._to or (dead_letter.source[0] if dead_letter.source is not None else "")
            record = written_back(dead_letter, self._to, self._client.partitions(target))
            assert record is not None
            records.append(record)
            self.written[target] = self.written.get(target, 0) + 1
        if self._dry_run:
            return
        touched = {dead_letter.partition for dead_letter in chunk}
        offsets = {p: (self.remembered[p].offset, self.remembered[p].metadata()) for p in touched}
        if any(len(metadata) > METADATA_BYTES_MAX for _, metadata in offsets.values()):
            for record in records:
                self.written[record.topic] -= 1
            raise _TooManyGapsError
        self._client.write(records, self._topic, self.group, offsets)


def _chosen(
    client: DeadLetterClient,
    source: str,
    since: str | None,
    errors: tuple[str, ...],
    stage: str | None,
    expectation: str | None,
) -> tuple[list[str], DeadLetterFilter]:
    """Return the selected dead-letter topics, and the filter."""
    from headwater.pipelines.dead_letters.records import DeadLetterFilter
    from headwater.pipelines.definition.graph import DEAD_LETTERS_SUFFIX, dead_letter_topics
    from headwater.pipelines.deployment.replay import parse_origin

    since_ms = None
    if since is not None:
        try:
            since_ms = parse_origin(since).moment_ms
        except ValueError:
            since_ms = None
        if since_ms is None:
            raise CliError(
                "dead-letters", f"--since {since!r} is not a timestamp", "write 2026-01-01T00:00:00Z or @1767225600000"
            )
    known = client.topics()
    pipeline = None
    if os.path.isfile(source):
        from headwater.cli.pipeline.loading import load

        loaded = load(source, (), frozenset(known))
        pipeline = loaded.pipeline.pipeline
        named = [topic for each in loaded.pipeline.stages for topic in dead_letter_topics(loaded.pipeline, each)]
        topics = [topic for topic in dict.fromkeys(named) if topic in known]
    elif source.endswith(DEAD_LETTERS_SUFFIX):
        topics = [source] if source in known else []
    elif source + DEAD_LETTERS_SUFFIX in known:
        topics = [source + DEAD_LETTERS_SUFFIX]
    elif source in known:
        topics = []
    else:
        pipeline = source
        topics = [topic for topic in sorted(known) if topic.endswith(DEAD_LETTERS_SUFFIX)]
    if not topics:
        raise CliError("dead-letters", f"{source} has no dead letters: its dead-letter topic does not exist yet")
    return topics, DeadLetterFilter(since_ms, errors, pipeline, stage, expectation)


def describe(dead_letter: DeadLetter) -> str:
    """Format a dead letter for people."""
    from headwater.pipelines.dead_letters.headers import ERROR, PIPELINE, STAGE

    at = datetime.fromtimestamp(dead_letter.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    found = dead_letter.as_dict()
    source = dead_letter.source
    who = f"stage {dead_letter.header(STAGE)} of {dead_letter.header(PIPELINE)}"
    lines = [
        f"{dead_letter.topic}-{dead_letter.partition} offset {dead_letter.offset}, {at}, {who}",
        f"  error    {dead_letter.header(ERROR)}",
    ]
    if source is not None:
        lines.append(f"  from     {source[0]}-{source[1]} offset {source[2]}")
    if dead_letter.rounds:
        lines.append(f"  replayed {dead_letter.rounds} times before")
    lines += [f"  {name:<8} {_text(found[name])}" for name in ("key", "value") if found[name] is not None]
    lines += [f"  header   {each['name']}={_text(each['value'])}" for each in found["headers"]]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    printable = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return printable if len(printable) <= VALUE_LENGTH_MAX else printable[: VALUE_LENGTH_MAX - 1] + "…"
