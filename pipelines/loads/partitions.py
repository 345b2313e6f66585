"""The partition columns of a load, as a user says them: a column, `date(...)`, `hour(...)`. Pure."""

from __future__ import annotations

import re
import zoneinfo
from typing import Final

from headwater.pipelines import columns
from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.rows import PartitionColumn

__all__ = ["parse_partitions"]

_FUNCTION: Final = re.compile(r"(?i)(date|hour)\(\s*`?([A-Za-z_][A-Za-z0-9_]*)`?\s*\)")
_COLUMN: Final = re.compile(r"`?([A-Za-z_][A-Za-z0-9_]*)`?")
_NAMED: Final = re.compile(r"(?is)(.+?)\s+as\s+`?([a-z][a-z0-9_]*)`?")
_PARTITIONS_MAX: Final = 10
_NAMES: Final = {"date": "dt", "hour": "hour"}
#: An hour is text of two digits: folders sort as time does. Text that is no time becomes null.
_EXPRESSIONS: Final = {"date": "to_date({time})", "hour": "date_format({time}, 'HH')"}


def parse_partitions(texts: list[str], timezone: str) -> tuple[PartitionColumn, ...]:
    """Parse `--partition-by`; several columns are separated by commas. Expressions are for a session in UTC.

    Raises LoadError.

    >>> [each.name for each in parse_partitions(["date(_timestamp),hour(_timestamp)", "carrier"], "UTC")]
    ['dt', 'hour', 'carrier']
    >>> parse_partitions(["hour(_timestamp)"], "America/New_York")[0].expression
    "date_format(from_utc_timestamp(try_cast(`_timestamp` AS TIMESTAMP), 'America/New_York'), 'HH')"
    """
    try:
        zoneinfo.ZoneInfo(timezone)
    except (ValueError, zoneinfo.ZoneInfoNotFoundError, OSError):
        raise LoadError(f"--timezone {timezone[:60]!r} is no time zone: use a name such as America/New_York") from None
    found: list[PartitionColumn] = []
    for text in (part.strip() for each in texts for part in each.split(",")):
        named = _NAMED.fullmatch(text)
        what = text if named is None else named[1].strip()
        if function := _FUNCTION.fullmatch(what):
            kind, column = function[1].lower(), function[2]
            time = f"try_cast(`{column}` AS TIMESTAMP)"
            time = time if timezone == "UTC" else f"from_utc_timestamp({time}, '{timezone}')"
            name, expression = _NAMES[kind], _EXPRESSIONS[kind].format(time=time)
        elif column_name := _COLUMN.fullmatch(what):
            name, expression = column_name[1], f"`{column_name[1]}`"
        else:
            raise LoadError(
                f"--partition-by {text[:60]!r}: use a column, date({columns.TIMESTAMP}) or hour({columns.TIMESTAMP}), "
                "with AS NAME for another name"
            )
        name = name if named is None else named[2]
        if name.startswith("_"):
            raise LoadError(f"--partition-by {name}: Hive skips folders that begin with _; name it: {name} AS NAME")
        found.append(PartitionColumn(name, expression))
    names = [each.name.lower() for each in found]
    if len(set(names)) < len(names) or len(names) > _PARTITIONS_MAX:
        raise LoadError(f"--partition-by names a column twice, or more than {_PARTITIONS_MAX}")
    return tuple(found)
