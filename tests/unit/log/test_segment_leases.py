"""Leases on a log's older segments: each holder gives back its own."""

from headwater.logtier.log.segments.segment_leases import SegmentLeases, SegmentUse


def test_one_holder_that_ends_leaves_the_others_lease_out() -> None:
    leases = SegmentLeases()
    first, second = (leases.take(SegmentUse.COPYING) for _ in range(2))
    first.give_back()
    first.give_back()
    assert leases.are_out_for(SegmentUse.COPYING)
    second.give_back()
    assert not leases.are_out_for(SegmentUse.COPYING)


def test_a_lease_is_for_one_use_and_ends_with_its_block() -> None:
    leases = SegmentLeases()
    with leases.take(SegmentUse.CLEANING):
        assert leases.are_out_for(SegmentUse.CLEANING)
        assert not leases.are_out_for(SegmentUse.COPYING)
    assert not leases.are_out_for(SegmentUse.CLEANING)
