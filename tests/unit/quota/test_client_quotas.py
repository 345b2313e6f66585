"""Whose quota holds, who shares it, and how long whoever exceeds it has to wait."""

import pytest

from headwater.logtier.config.quotas import ClientQuota, entity_of, entity_problem, value_problem
from headwater.logtier.quota.client_quotas import METERS_MAX, ClientQuotas
from headwater.logtier.quota.entities import QuotaTable, Scope
from headwater.logtier.quota.rate import WindowedRate

NOW_MS = 1_000_000


def quota(key: str = "producer_byte_rate", value: float = 1000, /, **entity: str | None) -> ClientQuota:
    return ClientQuota(entity_of({name.replace("_", "-"): each for name, each in entity.items()}), {key: value})


def quotas(*given: ClientQuota) -> ClientQuotas:
    made = ClientQuotas()
    made.replace(given)
    return made


def test_the_most_special_quota_holds() -> None:
    ordered = [
        quota("k", 1, user="u", client_id="c"),
        quota("k", 2, user="u", client_id=None),
        quota("k", 3, user="u"),
        quota("k", 4, user=None, client_id="c"),
        quota("k", 5, user=None, client_id=None),
        quota("k", 6, user=None),
        quota("k", 7, client_id="c"),
        quota("k", 8, client_id=None),
    ]
    for strongest in range(len(ordered)):
        limit = QuotaTable(reversed(ordered[strongest:])).limit("u", "c", "k")
        assert limit is not None
        assert limit.value == strongest + 1
    assert QuotaTable().limit("u", "c", "k") is None
    assert QuotaTable(ordered).limit("u", "c", "other") is None


@pytest.mark.parametrize(
    ("given", "scope"),
    [
        (quota("k", user="u"), Scope("u", None)),
        (quota("k", user=None), Scope("u", None)),
        (quota("k", client_id=None), Scope(None, "c")),
        (quota("k", user="u", client_id=None), Scope("u", "c")),
    ],
)
def test_a_default_gives_each_its_own_share(given: ClientQuota, scope: Scope) -> None:
    limit = QuotaTable([given]).limit("u", "c", "k")
    assert limit is not None
    assert limit.scope == scope


def test_all_clients_of_a_user_share_its_quota_and_others_have_their_own() -> None:
    made = quotas(quota(user=None))
    assert made.record_produce("alice", "one", 30_000, NOW_MS) == 20_000
    assert made.record_produce("alice", "two", 0, NOW_MS) == 20_000
    assert made.record_produce("bob", "one", 9_000, NOW_MS) == 0


def test_nothing_is_active_without_quotas_of_clients() -> None:
    assert not quotas().is_active
    assert not quotas(quota("connection_creation_rate", ip=None)).is_active
    assert quotas(quota(user="u")).is_active
    assert not quotas(quota(user="u")).meters_time
    assert quotas(quota("request_percentage", 1, user="u")).meters_time


def test_who_waited_as_told_may_go_on() -> None:
    made = quotas(quota(user="u"))
    now_ms = NOW_MS
    wait_ms = made.record_produce("u", "", 15_000, now_ms)
    assert wait_ms == 5_000
    while wait_ms:
        now_ms += wait_ms
        wait_ms = made.record_produce("u", "", 0, now_ms)
    assert NOW_MS + 5_000 <= now_ms <= NOW_MS + 15_000


def test_a_fetch_that_has_to_wait_is_not_counted() -> None:
    made = quotas(quota("consumer_byte_rate", user="u"))
    assert made.record_fetch("u", "", 10_001, NOW_MS) > 0
    assert made.record_fetch("u", "", 10_000, NOW_MS) == 0


def test_a_fetch_is_cut_to_what_its_quota_allows_at_once() -> None:
    made = quotas(quota("consumer_byte_rate", user="u"))
    assert made.fetch_bytes_max("u", "", 50_000_000) == 10_000
    assert made.fetch_bytes_max("other", "", 50_000_000) == 50_000_000


def test_time_is_counted_in_per_cent_and_the_wait_is_one_window_at_most() -> None:
    made = quotas(quota("request_percentage", 1, user="u"))
    assert made.record_time("u", "", 100, NOW_MS) == 0  # 1 % of ten seconds
    assert 0 < made.record_time("u", "", 1, NOW_MS) <= 1000
    assert made.record_time("u", "", 60_000, NOW_MS) == 1000


def test_a_quota_that_is_raised_holds_for_what_was_used_before() -> None:
    made = quotas(quota(user="u"))
    assert made.record_produce("u", "", 15_000, NOW_MS) > 0
    made.replace([quota("producer_byte_rate", 2000, user="u")])
    assert made.record_produce("u", "", 0, NOW_MS) == 0


def test_a_strict_quota_refuses_when_nothing_is_left_and_says_until_when() -> None:
    made = quotas(quota("controller_mutation_rate", 1, user="u"))
    first = made.mutations("u", "", NOW_MS, is_strict=True)
    assert first is not None
    assert first.take(20, NOW_MS)  # a burst of 11; nine too many
    assert first.wait_ms(NOW_MS) == 0
    second = made.mutations("u", "", NOW_MS, is_strict=True)
    assert second is not None
    assert not second.take(1, NOW_MS)
    assert second.wait_ms(NOW_MS) == 9_000
    third = made.mutations("u", "", NOW_MS + 9_000, is_strict=True)
    assert third is not None
    assert third.take(1, NOW_MS + 9_000)


def test_a_permissive_quota_lets_everything_happen_and_makes_the_client_wait() -> None:
    made = quotas(quota("controller_mutation_rate", 1, user="u"))
    permissive = made.mutations("u", "", NOW_MS, is_strict=False)
    assert permissive is not None
    assert permissive.take(12, NOW_MS)
    assert permissive.take(1, NOW_MS)
    assert permissive.wait_ms(NOW_MS) == 2_000
    assert made.mutations("other", "", NOW_MS, is_strict=True) is None


def test_the_connections_of_an_address_are_counted_by_the_address() -> None:
    made = quotas(quota("connection_creation_rate", 1, ip=None), quota("connection_creation_rate", 100, ip="1.1.1.1"))
    waits = [made.record_connection("2.2.2.2", NOW_MS) for _ in range(12)]
    assert waits[:10] == [0] * 10
    assert all(0 < wait_ms <= 1000 for wait_ms in waits[10:])
    assert not any(made.record_connection("1.1.1.1", NOW_MS) for _ in range(50))
    assert made.record_connection("3.3.3.3", NOW_MS) == 0


def test_made_up_client_ids_do_not_pile_up() -> None:
    made = quotas(quota(client_id=None))
    for number in range(METERS_MAX + 100):
        made.record_produce("u", str(number), 1, NOW_MS)
    assert len(made._rates["producer_byte_rate"]._by_scope) <= METERS_MAX
    made.record_produce("u", "another", 1, NOW_MS + 60_000)
    assert len(made._rates["producer_byte_rate"]._by_scope) == 1


def test_what_is_older_than_the_windows_does_not_count() -> None:
    rate = WindowedRate(11, 1000)
    rate.record(11_000, NOW_MS)
    assert rate.rate(NOW_MS) == 1100
    assert rate.rate(NOW_MS + 10_999) < 1001
    assert rate.rate(NOW_MS + 11_000) == 0
    assert rate.is_idle(NOW_MS + 11_000)


@pytest.mark.parametrize(
    ("entity", "problem"),
    [
        ({}, "empty client quota entity"),
        ({"group": "g"}, "Unhandled client quota entity type: group"),
        ({"user": ""}, "Empty user not supported"),
        ({"ip": "1.1.1.1", "user": "u"}, "IP entity should not be combined"),
        ({"ip": "example.org"}, "is not a valid IP address"),
    ],
)
def test_an_entity_that_makes_no_sense_is_refused(entity: dict[str, str | None], problem: str) -> None:
    assert problem in (entity_problem(entity_of(entity)) or "")


@pytest.mark.parametrize(
    ("entity", "key", "value", "problem"),
    [
        ({"user": "u"}, "connection_creation_rate", 1, "Invalid configuration key"),
        ({"ip": None}, "producer_byte_rate", 1, "Invalid configuration key"),
        ({"user": "u"}, "producer_byte_rate", 0, "must be greater than 0"),
        ({"user": "u"}, "request_percentage", float("nan"), "must be greater than 0"),
        ({"user": "u"}, "producer_byte_rate", 1.5, "cannot be a fractional value"),
        ({"user": "u"}, "producer_byte_rate", 1e30, "too large for a LONG"),
        ({"ip": None}, "connection_creation_rate", 3e9, "too large for an INT"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(
    entity: dict[str, str | None], key: str, value: float, problem: str
) -> None:
    assert problem in (value_problem(entity_of(entity), key, value) or "")


def test_values_that_make_sense_are_taken() -> None:
    assert entity_problem(entity_of({"user": None, "client-id": "c"})) is None
    assert entity_problem(entity_of({"ip": "::1"})) is None
    assert value_problem(entity_of({"user": "u"}), "request_percentage", 0.5) is None
    assert value_problem(entity_of({"user": "u"}), "producer_byte_rate", 1e6) is None
