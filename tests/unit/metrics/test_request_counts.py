from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.metrics.families import buckets_of, request_families
from headwater.logtier.runtime.metrics import BrokerMetrics, error_codes


def counted(context: RequestContext) -> dict[int, int]:
    return dict(context.api_metrics.errors)


def context() -> RequestContext:
    return RequestContext(None, 3, 12, 1, "c", "h", "User:ANONYMOUS")  # type: ignore[arg-type]


def test_an_answer_without_errors_counts_as_one_without() -> None:
    asked = context()
    asked.count_answer(error_codes({"error_code": 0, "topics": [{"error_code": 0}]}), 0.002)
    assert counted(asked) == {0: 1}
    assert sum(asked.api_metrics.seconds.counts) == 1


def test_each_error_of_an_answer_counts() -> None:
    asked = context()
    tree = {"topics": [{"error_code": 3}, {"partitions": [{"error_code": 5}, {"error_code": 3}, {"error_code": 0}]}]}
    asked.count_answer(error_codes(tree), 0.002)
    assert counted(asked) == {3: 2, 5: 1}


def test_families_have_kafkas_names_of_apis_and_errors() -> None:
    metrics = BrokerMetrics()
    metrics.api(36).seconds.observe(0.003)
    metrics.api(36).errors[58] += 2
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in request_families(metrics)
        for sample in family.samples
    }
    assert samples["headwater_request_errors_total", "SaslAuthenticate", "SASL_AUTHENTICATION_FAILED"] == 2
    assert samples["headwater_request_seconds_count", "SaslAuthenticate"] == 1
    assert samples["headwater_request_seconds_bucket", "SaslAuthenticate", "0.0025"] == 0
    assert samples["headwater_request_seconds_bucket", "SaslAuthenticate", "0.005"] == 1


def test_buckets_are_cumulative_and_end_with_all() -> None:
    metrics = BrokerMetrics()
    for value in (0.0, 0.2, 100.0):
        metrics.loop_lag.observe(value)
    buckets = buckets_of(metrics.loop_lag)
    assert [count for _, count in buckets] == sorted(count for _, count in buckets)
    assert buckets[-1] == ("+Inf", 3)
