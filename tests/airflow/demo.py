"""`make airflow`: a broker with records that keep coming, and Airflow with the DAGs, until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.airflow.airflow_home import CONNECTION, AirflowHome, airflow_python
from tests.conftest import BrokerProcess

FLIGHTS, WEATHER, DONE = "flights", "weather", "deliveries_done"
MINUTE_MS = 60_000
HISTORY_MINUTES = 60
CARRIERS = ("UA", "B6", "EV", "DL", "AA")


def demo_settings(lake: Path) -> dict[str, Any]:
    """Loads every five minutes, so that there is something to see."""
    return {
        "connection": CONNECTION,
        "loads": [
            {
                "name": "hourly",
                "topics": [FLIGHTS, WEATHER],
                "to": f"{lake}/{{topic}}",
                "schedule": "*/5 * * * *",
                "start": time.strftime("%Y-%m-%dT%H:00:00Z", time.gmtime(time.time() - HISTORY_MINUTES * 60)),
                "poke_s": 10,
                "partition_by": ["hour(timestamp)"],
                "check": {"rows_min": 1, "fresh_s": 600},
                "maintenance": {"schedule": "0 3 * * 0"},
            }
        ],
        "events": [
            {
                "name": "deliveries",
                "watch": DONE,
                "topics": [FLIGHTS],
                "to": f"{lake}/delivered",
                "connection": CONNECTION,
            }
        ],
        "lag": [
            {"name": "events", "group": "airflow-events", "topics": [DONE], "lag_max": 10, "connection": CONNECTION}
        ],
    }


def produce(servers: str, ended: threading.Event) -> None:
    """An hour of records, then some each second."""
    producer = Producer({"bootstrap.servers": servers, "log_level": 2})  # quiet when the broker ends
    now_ms = int(time.time() * 1000)
    moment_ms, number = now_ms - HISTORY_MINUTES * MINUTE_MS, 0
    while not ended.is_set():
        carrier = CARRIERS[number % len(CARRIERS)]
        value = f'{{"flight": {number}, "carrier": "{carrier}"}}'
        producer.produce(FLIGHTS, value, carrier, timestamp=moment_ms)
        producer.produce(WEATHER, f'{{"reading": {number}}}', "JFK", timestamp=moment_ms)
        producer.poll(0)
        number, moment_ms = number + 1, moment_ms + 500
        ended.wait(max((moment_ms / 1000) - time.time(), 0))
    producer.flush(10)


def main() -> int:
    """Run the demo; the exit code."""
    python = airflow_python()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with tempfile.TemporaryDirectory(prefix="headwater-airflow-") as place:
        folder = Path(place)
        broker = BrokerProcess(folder / "broker", 0, {})
        producing: threading.Thread | None = None
        home: AirflowHome | None = None
        try:
            broker.await_ready()
            topics = [NewTopic(FLIGHTS, 2, 1), NewTopic(WEATHER, 1, 1), NewTopic(DONE, 1, 1)]
            admin = AdminClient({"bootstrap.servers": broker.address})
            for future in admin.create_topics(topics).values():
                future.result(30)
            producing = threading.Thread(target=produce, args=(broker.address, ended))
            producing.start()
            home = AirflowHome(python, folder / "airflow", broker.address, demo_settings(folder / "lake"))
            print("Starting Airflow (about a minute)", flush=True)
            home.prepare()
            home.start()
            print(
                f"Airflow: {home.url}  user: admin  password: {home.password}\n"
                f"Broker: {broker.address}  Tables: {folder}/lake\n"
                "The DAGs are paused: switch on headwater_load_hourly, which loads every five minutes. An event for\n"
                f"headwater_event_deliveries: echo done | headwater produce {DONE} -b {broker.address}\n"
                "Ctrl-C ends everything and deletes it.",
                flush=True,
            )
            ended.wait()
        finally:
            ended.set()
            if home is not None:
                home.close()
            if producing is not None:
                producing.join()
            broker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
