"""`headwater ship`: writes the lines of growing files as messages."""

from __future__ import annotations

import logging
import signal
import sys
from typing import TYPE_CHECKING

import click

from headwater.api.connection import client_properties, parse_bootstrap_servers
from headwater.api.topic_model import validate_topic_name
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_options, client_security, compression_option, servers, settings
from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from types import FrameType

LINE_BYTES_MAX = 1_000_000
LINGER_MS = 20
OTHER_FILES = 100
"""Descriptors in addition to those of the followed files: connections, positions, the interpreter's own."""


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="Topic to write to.")
@click.option(
    "--positions",
    type=click.Path(),
    metavar="FILE",
    help="File that stores how far each file was sent.  [default: headwater-ship-TOPIC.json]",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Files to skip, by name or, if the pattern has a /, by path; may be repeated.",
)
@click.option("--from-end", is_flag=True, help="Start at the end of files that exist and have no stored position.")
@click.option("--to-end", is_flag=True, help="Exit at the end of the files instead of following them.")
@compression_option
@click.option(
    "--line-bytes-max",
    type=click.IntRange(1, 64 << 20),
    default=LINE_BYTES_MAX,
    show_default=True,
    help="Maximum size of a message; longer lines, and lines too large for the topic, are split.",
)
@client_options
def ship(
    files: tuple[str, ...],
    topic: str,
    positions: str | None,
    exclude: tuple[str, ...],
    from_end: bool,
    to_end: bool,
    compression: str,
    line_bytes_max: int,
    bootstrap_servers: str | None,
) -> None:
    """Follow FILEs and write each appended line to TOPIC as a message.

    FILE may be a quoted pattern; files that match later are followed, too. Rotated files are read to their end,
    truncated or rewritten files are read from their start, compressed files are skipped. The position of each file is
    stored on disk, and a restart continues from it: every line is delivered at least once, and the lines of a file in
    order (the key is the file's path; headers hold file and host). The command waits while no broker is available. The
    exit code is 1 if a line was not acknowledged or, with --to-end, a file was not read to its end.

    \b
    Examples:
      headwater ship /var/log/nginx/access.log -t access_log
      headwater ship '/var/log/app/*.log' -t app_log --positions /var/lib/headwater/app.json
    """
    from headwater.logtier.runtime.open_files import raise_open_file_limit
    from headwater.shipping.file_patterns import FilePatterns
    from headwater.shipping.line_sender import LineSender
    from headwater.shipping.shipped_positions import PositionsError, locked
    from headwater.shipping.shipper import FILES_MAX, Shipper

    validate_topic_name(topic)
    brokers = servers(bootstrap_servers)
    parse_bootstrap_servers(brokers)
    logging.basicConfig(level=settings().log_level, format="headwater: %(message)s", stream=sys.stderr)
    limit = raise_open_file_limit()
    properties = client_properties(brokers, settings().request_timeout_ms, client_security()) | {
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": compression,
        "linger.ms": LINGER_MS,
        # Brokers may be away for as long as they like: the files wait.
        "message.timeout.ms": 0,
        "partitioner": "murmur2_random",
    }
    path = positions if positions is not None else f"headwater-ship-{topic}.json"
    try:
        with locked(path):
            shipper = Shipper(
                LineSender(topic, properties),
                FilePatterns(files, exclude),
                path,
                from_end=from_end,
                line_bytes_max=line_bytes_max,
                is_to_end=to_end,
                # Where the limit is infinite it is below zero.
                files_max=FILES_MAX if limit < 0 else min(FILES_MAX, max(1, limit - OTHER_FILES)),
            )

            def end(_number: int, _frame: FrameType | None) -> None:
                shipper.stop()

            signal.signal(signal.SIGINT, end)
            signal.signal(signal.SIGTERM, end)
            summary = shipper.run()
    except PositionsError as error:
        raise CliError("ship", str(error), exit_code=EXIT_FAILED) from None
    note(f"Shipped {summary.shipped} lines to {topic}.")
    if mistakes := summary.mistakes():
        raise CliError("ship", "; ".join(mistakes), exit_code=EXIT_FAILED)
