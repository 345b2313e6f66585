"""The options of `headwater sql`, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headwater.cli.shell.errors import CliError

FOLLOWED_ROWS: Final = 10_000  # by default; a second of a busy topic


@dataclass(frozen=True, slots=True)
class SqlOptions:
    """The options as given; `goes_on` is `--continue`, `start` is `--from`."""

    query: str | None = None
    script: str | None = None
    params: tuple[str, ...] = ()
    goes_on: bool = False
    bootstrap_servers: str | None = None
    file: str | None = None
    assignments: tuple[str, ...] = ()
    archive: str | None = None
    deltas: tuple[str, ...] = ()
    registry: str | None = None
    catalog: str | None = None
    output: str = "table"
    to: str | None = None
    follow: bool = False
    start: str | None = None
    rows_held: int | None = None

    def check(self) -> None:
        """Raise CliError for options that exclude or need each other."""
        if self.query is not None and self.script is not None:
            raise CliError("sql", "give either -e or -f")
        if (self.output == "parquet") != (self.to is not None):
            raise CliError("sql", "-o parquet and --to FILE go together")
        if self.follow and self.query is None and self.script is None:
            raise CliError("sql", "--follow needs the statement to follow", "give it by -e or -f")
        if self.follow and self.output in ("json", "parquet"):
            raise CliError("sql", f"--follow has no end, and -o {self.output} is complete at the end", "use -o jsonl")
        if not self.follow and (self.start is not None or self.rows_held is not None):
            raise CliError("sql", "--from and --rows-held are for --follow")
