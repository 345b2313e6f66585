"""Fetches the partitions that this broker follows from their leaders.

`replica_fetchers` assigns partitions to a `leader_fetcher` for each leader and connection; its `fetch_plan` decides
what to ask (pure), and `follower_logs` applies the answers.
"""

from headwater.logtier.replication.fetching.replica_fetchers import ReplicaFetchers

__all__ = ["ReplicaFetchers"]
