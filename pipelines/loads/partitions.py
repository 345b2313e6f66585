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
_PARTITIONS_MAX: Final = 10
_NAMES: Final = {"date": "dt", "hour": "hour"}
#: An hour is text of two digits: folders sort as time does.
_EXPRESSIONS: Final = {"date": "to_date({time})", "hour": "date_format({time}, 'HH')"}


def parse_partitions(texts: list[str], timezone: str) -> tuple[PartitionColumn, ...]:
    """Parse `--partition-by`; several columns are separated by commas. Raises LoadError.

    >>> [each.name for each in parse_partitions(["date(_timestamp),hour(_timestamp)", "carrier"], "UTC")]
    ['dt', 'hour', 'carrier']
    >>> parse_partitions(["hour(_timestamp)"], "America/New_York")[0].expression
    "date_format(from_utc_timestamp(`_timestamp`, 'America/New_York'), 'HH')"
    """
    try:
        zoneinfo.ZoneInfo(timezone)
    except (ValueError, zoneinfo.ZoneInfoNotFoundError, OSError):
        raise LoadError(f"--timezone {timezone[:60]!r} is no time zone: use a name such as America/New_York") from None
    found: list[PartitionColumn] = []
    for text in (part.strip() for each in texts for part in each.split(",")):
        if function := _FUNCTION.fullmatch(text):
            kind, column = function[1].lower(), function[2]
            time = f"`{column}`" if timezone == "UTC" else f"from_utc_timestamp(`{column}`, '{timezone}')"
            found.append(PartitionColumn(_NAMES[kind], _EXPRESSIONS[kind].format(time=time)))
        elif column_name := _COLUMN.fullmatch(text):
            found.append(PartitionColumn(column_name[1], f"`{column_name[1]}`"))
        else:
            raise LoadError(
                f"--partition-by {text[:60]!r}: use a column, date({columns.TIMESTAMP}) or hour({columns.TIMESTAMP})"
            )
    names = [each.name.lower() for each in found]
    if len(set(names)) < len(names) or len(names) > _PARTITIONS_MAX:
        raise LoadError(f"--partition-by names a column twice, or more than {_PARTITIONS_MAX}")
    return tuple(found)
