"""The metrics of an archiver."""

from __future__ import annotations

import urllib.request

from headwater.pipelines.archive.metrics import TopicCounts, families
from headwater.pipelines.monitoring.prometheus_endpoint import PrometheusEndpoint


def test_each_topic_has_its_gauges_and_counters() -> None:
    counts = [
        TopicCounts(
            "flights",
            "/lake/flights",
            12.5,
            7,
            rows=100,
            errors=2,
            files=3,
            commits=4,
            failures=1,
            committed_s=9.0,
            held_bytes=4096,
        ),
        TopicCounts("orders", is_failing=True),
    ]
    endpoint = PrometheusEndpoint(lambda: families(counts))
    port = endpoint.open("127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
            text = response.read().decode()
    finally:
        endpoint.close()
    for line in (
        'headwater_archive_freshness_seconds{topic="flights"} 12.5',
        'headwater_archive_offsets_behind{topic="flights"} 7.0',
        'headwater_archive_held_bytes{topic="flights"} 4096.0',
        'headwater_archive_last_commit_timestamp_seconds{topic="flights"} 9.0',
        'headwater_archive_failing{topic="flights"} 0.0',
        'headwater_archive_failing{topic="orders"} 1.0',
        'headwater_archive_rows_total{topic="flights"} 100.0',
        'headwater_archive_error_rows_total{topic="flights"} 2.0',
        'headwater_archive_files_total{topic="flights"} 3.0',
        'headwater_archive_commits_total{topic="flights"} 4.0',
        'headwater_archive_failures_total{topic="flights"} 1.0',
    ):
        assert line in text.splitlines()
    # Nothing is known of it: 0 would say that it has caught up.
    assert 'freshness_seconds{topic="orders"}' not in text
    assert 'offsets_behind{topic="orders"}' not in text
