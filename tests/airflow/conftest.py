"""A real Airflow in an environment of its own, on a broker of this tree."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.airflow.airflow_home import AirflowHome, airflow_python
from tests.conftest import BrokerProcess

#: Programs for Airflow's own Python, which alone can import them.
collect_ignore = ["dag_driver.py"]

MakeHome = Callable[[Mapping[str, Any]], AirflowHome]
Write = Callable[[str, Sequence[tuple[int, int]]], None]


@pytest.fixture(scope="session")
def airflow() -> str:
    """Airflow's python."""
    return airflow_python()


@pytest.fixture
def make_home(airflow: str, headwater_broker: BrokerProcess, tmp_path: Path) -> Iterator[MakeHome]:
    """Makes an Airflow with settings of the DAGs; its services end with the test."""
    homes: list[AirflowHome] = []

    def make(settings: Mapping[str, Any]) -> AirflowHome:
        homes.append(AirflowHome(airflow, tmp_path / f"airflow-{len(homes)}", headwater_broker.address, settings))
        return homes[-1]

    yield make
    for home in homes:
        home.close()


@pytest.fixture
def write(headwater_broker: BrokerProcess) -> Write:
    """Writes records: (partition, timestamp in ms)."""
    producer = Producer({"bootstrap.servers": headwater_broker.address})

    def records(topic: str, places: Sequence[tuple[int, int]]) -> None:
        for partition, timestamp_ms in places:
            producer.produce(topic, b"x", b"k", partition=partition, timestamp=timestamp_ms)
        assert producer.flush(30) == 0

    return records


@pytest.fixture
def hour_ms() -> int:
    """The start of an hour, some hours ago."""
    return (int(time.time()) // 3600 - 5) * 3_600_000
