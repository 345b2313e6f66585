"""Changes of feature levels: Kafka's checks in Kafka's order, and what each broker supports."""

from __future__ import annotations

import pytest

from headwater.logtier.controller.admissions import Admissions
from headwater.logtier.controller.feature_state import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdate,
    plan_update_features,
)
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import BrokerRegistration, MetadataImage
from headwater.logtier.metadata.paths import BrokerProcess
from headwater.logtier.metadata.store import SetData
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.features import (
    EARLIER_RELEASES,
    FIRST_FEATURES,
    SUPPORTED_FEATURES,
    FeatureRange,
    FinalizedFeatures,
    UnsupportedFeaturesError,
    beyond,
    check_supported,
    registered_ranges,
    stated_ranges,
)

#: A release with something to choose.
RELEASE = {
    "metadata.version": FeatureRange(26, 28),
    "group.version": FeatureRange(0, 1),
    "transaction.version": FeatureRange(0, 2),
}
LEVELS = FinalizedFeatures(4, {"metadata.version": 27, "transaction.version": 1})


def plan(
    *updates: FeatureUpdate, brokers: dict[int, dict[str, FeatureRange]] | None = None
) -> FinalizedFeatures | None:
    """The levels after an update, None if nothing is to be written."""
    operations = plan_update_features(LEVELS, updates, {1: RELEASE, **(brokers or {})})
    if not operations:
        return None
    [operation] = operations
    assert isinstance(operation, SetData)
    return MetadataImage().apply([(operation.path, operation.data)]).features


def test_levels_are_raised_and_lowered_together_in_one_change() -> None:
    assert plan(FeatureUpdate("group.version", 1), FeatureUpdate("transaction.version", 2)) == FinalizedFeatures(
        5, {"metadata.version": 27, "group.version": 1, "transaction.version": 2}
    )
    assert plan(FeatureUpdate("metadata.version", 28)) is not None
    # Level 0 is that of a feature that does not exist.
    assert plan(FeatureUpdate("transaction.version", 0, SAFE_DOWNGRADE)) == FinalizedFeatures(
        5, {"metadata.version": 27}
    )


@pytest.mark.parametrize(
    "updates",
    [
        [],
        [FeatureUpdate("transaction.version", 1)],
        [FeatureUpdate("transaction.version", 1, UNSAFE_DOWNGRADE)],
        [FeatureUpdate("share.version", 0)],
    ],
)
def test_what_is_so_already_is_no_change(updates: list[FeatureUpdate]) -> None:
    assert plan(*updates) is None


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (("transaction.version", 0, UPGRADE), "Can't downgrade the version of this feature without setting"),
        (("transaction.version", 2, SAFE_DOWNGRADE), "Can't downgrade to a newer version."),
        (("transaction.version", 3, UPGRADE), "Broker 1 only supports versions 0-2"),
        (("transaction.version", -1, UPGRADE), "A feature version cannot be less than 0."),
        (("transaction.version", 2, 0), "The controller does not support the given upgrade type."),
        (("transaction.version", 2, 4), "The controller does not support the given upgrade type."),
        (("weather.version", 1, UPGRADE), "Broker 1 does not support this feature."),
        (("metadata.version", 26, SAFE_DOWNGRADE), "might delete metadata information"),
        (("metadata.version", 26, UNSAFE_DOWNGRADE), "Unsafe metadata downgrade is not supported"),
        (("metadata.version", 0, SAFE_DOWNGRADE), "Broker 1 only supports versions 26-28"),
    ],
)
def test_each_refusal_has_kafkas_code_and_reason(update: tuple[str, int, int], reason: str) -> None:
    with pytest.raises(KafkaError) as refusal:
        plan(FeatureUpdate("group.version", 1), FeatureUpdate(*update))
    assert refusal.value.code is ErrorCode.invalid_update_version
    assert reason in refusal.value.message
    assert f"Invalid update version {update[1]} for feature {update[0]}. " in refusal.value.message


def test_a_level_waits_for_the_last_broker_also_for_one_that_is_away() -> None:
    older = {**RELEASE, "transaction.version": FeatureRange(0, 1)}
    unlike: dict[int, dict[str, FeatureRange]] = {2: {}}
    for brokers, reason in (
        ({2: RELEASE, 3: older}, "Broker 3 only supports versions 0-1"),
        (unlike, "Broker 2 does not support this feature."),
    ):
        with pytest.raises(KafkaError, match=reason):
            plan(FeatureUpdate("transaction.version", 2), brokers=brokers)
    assert plan(FeatureUpdate("transaction.version", 2), brokers={2: RELEASE, 3: RELEASE}) is not None


def test_a_registration_without_features_is_of_an_earlier_release() -> None:
    assert registered_ranges(()) == EARLIER_RELEASES
    assert registered_ranges(stated_ranges(RELEASE)) == RELEASE
    data = paths.encode_broker("h", 1, None, process=BrokerProcess(("a",), "boot", features=stated_ranges(RELEASE)))
    process = paths.decode_broker("/brokers/ids/1", data, epoch=1)[-1]
    assert registered_ranges(process.features) == RELEASE


def test_a_store_without_levels_has_the_first_ones_which_this_and_earlier_releases_support() -> None:
    assert MetadataImage().features == FIRST_FEATURES
    assert beyond(SUPPORTED_FEATURES, FIRST_FEATURES) is None
    assert beyond(EARLIER_RELEASES, FIRST_FEATURES) is None
    # Each level that can be finalized keeps the metadata readable.
    assert SUPPORTED_FEATURES["metadata.version"].last == FIRST_FEATURES.level("metadata.version")


def test_a_release_that_does_not_support_a_level_is_named_with_it() -> None:
    narrow = {**RELEASE, "metadata.version": FeatureRange(25, 26)}
    with pytest.raises(UnsupportedFeaturesError) as refusal:
        check_supported(narrow, LEVELS)
    assert str(refusal.value) == (
        "this release cannot take part in the cluster: metadata.version is finalized at level 27 and supported at "
        "25-26; start the release that the other brokers run"
    )
    check_supported(RELEASE, LEVELS)
    assert beyond({**RELEASE, "elr": FeatureRange(1, 1)}, LEVELS) == "elr is finalized at level 0 and supported at 1"


def test_the_controller_admits_no_broker_beyond_the_levels(caplog: pytest.LogCaptureFixture) -> None:
    def registration(broker_id: int, **ranges: FeatureRange) -> BrokerRegistration:
        features = stated_ranges({**RELEASE, **{name.replace("_", "."): each for name, each in ranges.items()}})
        return BrokerRegistration(broker_id, "h", 1, process=BrokerProcess(("a",), "boot", features=features))

    admissions = Admissions()
    newer = registration(2, transaction_version=FeatureRange(2, 3))
    for _ in range(3):
        found = admissions.admitted({1: registration(1), 2: newer, 3: BrokerRegistration(3, "h", 1)}, LEVELS)
        assert set(found) == {1, 3}
    reason = "transaction.version is finalized at level 1 and supported at 2-3"
    remedy = "start it with the release that the other brokers run"
    assert caplog.messages == [f"broker 2 is not admitted: {reason}; {remedy}"]


@pytest.mark.parametrize("data", [b"", b"{}", b'{"epoch":1,"levels":{"a":0}}', b'{"epoch":"1","levels":{}}', b"[1]"])
def test_damaged_levels_are_reported(data: bytes) -> None:
    with pytest.raises(paths.CorruptNodeError, match="/features"):
        MetadataImage().apply([(paths.FEATURES, data)])
