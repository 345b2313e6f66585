"""The log tier's list of the product's own topics, against those who make them."""

from headwater.api.cluster_health import COPIES
from headwater.logtier.metadata.product_topics import PRODUCT_REPLICAS, is_product_topic
from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS
from headwater.pipelines.definition.graph import dead_letter_topic
from headwater.pipelines.monitoring.status import STATUS_TOPIC
from headwater.pipelines.sinks.exactly_once.exactly_once_fence import FENCES_TOPIC
from headwater.settings import Settings


def test_the_topics_of_brokers_registry_and_pipelines_are_the_products() -> None:
    made = (*INTERNAL_TOPICS, STATUS_TOPIC, FENCES_TOPIC, Settings().registry_topic, dead_letter_topic("flights"))
    assert [name for name in made if not is_product_topic(name)] == []


def test_topics_of_users_are_not() -> None:
    assert [
        name for name in ("flights", "flights.dead_letters.copy", "my__headwater_status") if is_product_topic(name)
    ] == []


def test_health_and_metrics_judge_alike() -> None:
    assert COPIES == PRODUCT_REPLICAS
