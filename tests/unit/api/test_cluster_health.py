"""What the state of a cluster's replicas is called."""

from __future__ import annotations

from headwater.api.cluster_health import ClusterHealth, cluster_health
from headwater.api.topic_model import BrokerInfo, ClusterInfo, PartitionInfo, TopicInfo


def cluster(*broker_ids: int, controller_id: int | None = 1) -> ClusterInfo:
    brokers = tuple(BrokerInfo(each, "127.0.0.1", 9091 + each, None) for each in broker_ids)
    return ClusterInfo("id", controller_id, brokers)


def topic(name: str, *partitions: tuple[int | None, tuple[int, ...], tuple[int, ...]]) -> TopicInfo:
    return TopicInfo(name, "", False, tuple(PartitionInfo(i, *each) for i, each in enumerate(partitions)))


def health_of(
    brokers: ClusterInfo,
    topics: list[TopicInfo],
    min_isr: int = 1,
    product_topics: set[str] | None = None,
) -> ClusterHealth:
    minima = {each.name: min_isr for each in topics}
    return cluster_health(brokers, topics, minima, product_topics or set())


def test_a_whole_cluster_has_no_problems() -> None:
    flights = topic("flights", (1, (1, 2, 3), (1, 2, 3)), (2, (2, 3, 1), (1, 2, 3)))
    health = health_of(cluster(1, 2, 3), [flights], 2, {"__consumer_offsets"})
    assert health.problems == []
    assert [(each.leaders, each.replicas, each.in_sync) for each in health.brokers] == [(1, 2, 2), (1, 2, 2), (0, 2, 2)]


def test_a_dead_broker_leaves_partitions_under_replicated_and_at_min_isr() -> None:
    flights = topic("flights", (1, (1, 2, 3), (1, 2)))
    health = health_of(cluster(1, 2), [flights], 2)
    assert [str(each) for each in health.under_replicated] == ["flights-0"]
    assert [str(each) for each in health.at_min_isr] == ["flights-0"]
    assert (health.absent, health.offline, health.under_min_isr) == ((3,), (), ())
    assert health.problems == [
        "brokers that have replicas and are away: 3",
        "1 partition under-replicated: flights-0",
    ]


def test_two_dead_brokers_stop_writes_and_three_stop_reads() -> None:
    flights = topic("flights", (1, (1, 2, 3), (1,)), (None, (2, 3, 1), ()))
    health = health_of(cluster(1), [flights], 2)
    assert [str(each) for each in health.under_min_isr] == ["flights-0"]
    assert [str(each) for each in health.offline] == ["flights-1"]


def test_a_partition_without_a_leader_is_offline_and_nothing_else_as_in_the_metrics() -> None:
    flights = topic("flights", (None, (1, 2, 3), ()), (None, (1, 2, 3), (2, 3)), (None, (1, 2, 3), (1,)))
    health = health_of(cluster(), [flights], 2)
    assert [str(each) for each in health.offline] == ["flights-0", "flights-1", "flights-2"]
    assert (health.under_replicated, health.under_min_isr, health.at_min_isr) == ((), (), ())


def test_a_full_isr_of_exactly_the_minimum_is_at_min_isr_as_in_kafka_and_no_problem() -> None:
    health = health_of(cluster(1), [topic("local", (1, (1,), (1,)))], 2)
    assert [str(each) for each in health.at_min_isr] == ["local-0"]
    assert (health.under_min_isr, health.under_replicated, health.problems) == ((), (), [])


def test_few_copies_of_the_products_own_topics_are_told_on_three_brokers_only() -> None:
    offsets = topic("__consumer_offsets", (1, (1,), (1,)))
    assert health_of(cluster(1), [offsets], 1, {"__consumer_offsets"}).few_copies == ()
    health = health_of(cluster(1, 2, 3), [offsets], 1, {"__consumer_offsets"})
    assert health.few_copies == ("__consumer_offsets",)
    assert health.problems == ["topics of the product with fewer than 3 replicas: __consumer_offsets"]


def test_without_a_controller_nothing_can_be_changed() -> None:
    health = health_of(cluster(1, controller_id=None), [])
    assert health.problems == ["no controller: topics and configs cannot be changed until one is elected"]


def test_many_partitions_are_counted_and_a_few_are_named() -> None:
    flights = topic("flights", *[(None, (1,), ()) for _ in range(8)])
    lines = health_of(cluster(1), [flights]).problems
    assert lines[0] == (
        "8 partitions without a leader, neither readable nor writable: "
        "flights-0, flights-1, flights-2, flights-3, flights-4 and 3 more"
    )
