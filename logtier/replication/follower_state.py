"""What the leader of a partition knows of one follower. Pure."""

from typing import Final

#: Offset of a follower that has not fetched in this leader epoch.
UNKNOWN_OFFSET: Final = -1
#: Epoch of a broker that has not told it.
UNKNOWN_BROKER_EPOCH: Final = -1
#: Time of a follower that has never been heard of.
UNHEARD_MS: Final = -1


class FollowerState:
    """The end of one follower's log, as its fetches tell it.

    Invariant: at `caught_up_ms` the follower had every record that the leader then had. A fetch that reaches the end
    that the leader had at the previous fetch proves this for the time of that fetch: under steady load a follower
    never reaches the present end. Times are monotonic.
    """

    __slots__ = (
        "_fetch_ms",
        "_leader_end_offset",
        "broker_epoch",
        "caught_up_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, caught_up_ms: int | None) -> None:
        """Begin with the leadership: members of the ISR count as caught up at its begin, others (None) never did."""
        self.caught_up_ms = caught_up_ms
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self._fetch_ms: int | None = None
        self._leader_end_offset = UNKNOWN_OFFSET

    def fetched(
        self, fetch_offset: int, log_start_offset: int, broker_epoch: int, leader_end_offset: int, now_ms: int
    ) -> None:
        """Note a fetch: the follower has every record below its offset."""
        if fetch_offset >= leader_end_offset:
            self.caught_up_ms = now_ms
        elif self._fetch_ms is not None and fetch_offset >= self._leader_end_offset:
            self.caught_up_ms = max(self._fetch_ms, self.caught_up_ms or self._fetch_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self._fetch_ms = now_ms
        self._leader_end_offset = leader_end_offset

    @property
    def heard_ms(self) -> int:
        """When the follower last fetched or, if it has not, when it counted as caught up; -1 if never."""
        return max(UNHEARD_MS if each is None else each for each in (self._fetch_ms, self.caught_up_ms))

    def has_caught_up(self, fetch_offset: int) -> bool:
        """Whether a fetch from an offset proves that the follower had every record at its previous fetch."""
        return self._fetch_ms is not None and fetch_offset >= self._leader_end_offset

    def joined_isr(self, now_ms: int) -> None:
        """Note that the follower is in the ISR from now on: it has a full lag time to prove that it keeps up."""
        self.caught_up_ms = now_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_ms_max: int) -> bool:
        """Whether the follower has the leader's end, or had it within the lag time.

        >>> follower = FollowerState(caught_up_ms=1_000)
        >>> follower.is_caught_up(5, 1_500, lag_ms_max=500), follower.is_caught_up(5, 1_501, lag_ms_max=500)
        (True, False)
        """
        return self.log_end_offset == leader_end_offset or (
            self.caught_up_ms is not None and now_ms - self.caught_up_ms <= lag_ms_max
        )
