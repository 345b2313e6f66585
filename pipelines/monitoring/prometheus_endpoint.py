"""Serves metrics for Prometheus: `GET /metrics` on a separate port, by the client library's threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

__all__ = ["PrometheusEndpoint"]


class PrometheusEndpoint:
    """Serves what `collect` returns at each scrape, and metrics of this process, from `open` to `close`."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None

    def open(self, host: str, port: int) -> int:
        """Bind the port (0: any free port) and return it. Raises OSError if the port is unavailable."""
        registry = CollectorRegistry()
        registry.register(_Collector(self._collect))
        ProcessCollector(registry=registry)
        self._server, self._thread = start_http_server(port, host, registry)
        return int(self._server.server_port)

    def close(self) -> None:
        """Close the port. May be called twice."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Collector(Collector):
    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._collect()
