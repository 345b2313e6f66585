"""A consumer that does not decode: `python -m tests.bench.loads.cold_reader BOOTSTRAP TOPIC BYTES_PER_S`.

0 bytes a second: as fast as it goes. Reads the topic from its start to its end, once: one fetch of all partitions at a
time, of Kafka's default sizes, and of what comes only the batches' headers, which say where the next fetch begins.

What a consumer does with its records it does on a machine of its own. Beside the broker on few cores it would delay the
client that takes the time, whatever the broker does, even in the idle class: a scheduler that is fair by virtual time
(EEVDF, Linux 6.6 and later) lets a process of that class run until the next tick, 4 ms, while one that has just had a
little more than its share waits.
"""

from __future__ import annotations

import os
import sys
import time

from headwater.logtier.client.cluster import EARLIEST, LATEST, ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.fetch_codec import FetchPosition, fetch_request
from headwater.logtier.client.fetcher import offset_after
from headwater.logtier.client.messages import ApiKey

PARTITION_BYTES_MAX = 1 << 20  # max.partition.fetch.bytes
FETCH_BYTES_MAX = 50 << 20  # fetch.max.bytes
FETCH_WAIT_MS = 500  # fetch.max.wait.ms


def read(bootstrap: str, topic: str, bytes_per_s: float) -> int:
    """Bytes of records, all that the topic held at the beginning."""
    with ClusterClient(ClientConfig(parse_bootstrap_servers(bootstrap))) as cluster:
        partitions = [(topic, number) for number in cluster.partitions(topic)]
        offsets = cluster.list_offsets(dict.fromkeys(partitions, EARLIEST))
        ends = cluster.list_offsets(dict.fromkeys(partitions, LATEST))
        # The brokers that are measured are clusters of one.
        connection = cluster.open_leader_connection(topic, 0)
        start_s, count = time.monotonic(), 0
        while wanted := [p for p in partitions if offsets[p] < ends[p]]:
            request = fetch_request(
                connection.version(ApiKey.FETCH),
                [FetchPosition(*p, offsets[p], PARTITION_BYTES_MAX) for p in wanted],
                wait_ms=FETCH_WAIT_MS,
                bytes_min=1,
                bytes_max=FETCH_BYTES_MAX,
            )
            for fetched in connection.call(request):
                if fetched.error_code:
                    raise SystemExit(f"{topic}-{fetched.partition}: error {fetched.error_code}")
                at = (topic, fetched.partition)
                offsets[at] = offset_after(fetched.records, offsets[at])
                count += len(fetched.records)
            if bytes_per_s:
                time.sleep(max(0.0, start_s + count / bytes_per_s - time.monotonic()))
        connection.close()
        return count


if __name__ == "__main__":
    # Only time that nobody else wants.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    read(sys.argv[1], sys.argv[2], float(sys.argv[3]))
