"""Compares all in-sync replicas of one partition, while producers, cleaners and retention go on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from headwater.logtier.client.errors import ClientError, UnknownTopicError, error_name
from headwater.logtier.client.fetch_codec import CompletedFetch
from headwater.logtier.records.batch import CorruptRecordsError
from headwater.verification.outcomes import PartitionOutcome
from headwater.verification.replica_comparison import ReplicaBatch, ReplicaDifference, ReplicaPair, whole_batches
from headwater.verification.replica_source import FETCH_BYTES_MAX, PartitionReplicas, ReplicaSource
from headwater.verification.replica_stream import ReplicaStream
from headwater.verification.unmatched_records import Unmatched

PATIENCE_S: Final = 30.0
"""How long a replica in the ISR may fail to answer: by then, sessions and replica.lag.time.max.ms of the defaults have
removed a broker that is away from the ISR."""

RETRY_S: Final = 0.5
"""Pause after answers that brought nothing, and before a difference is read a second time."""

CONFIRMED_MAX: Final = 1_000
"""Lacking records of a pair that are read again one by one; a cleaner that runs meanwhile explains them."""

OFFSET_OUT_OF_RANGE: Final = 1

Progress = Callable[[int, int], None]
"""Called with the offset reached and the bytes read since the last call."""


class _Failure(NamedTuple):
    """Why a replica could not be read on; `is_answer`: whether its broker has said so itself."""

    reason: str
    is_answer: bool


class UnconfirmedError(Exception):
    """A difference cannot be read a second time; the message says why."""


class PartitionVerifier:
    """One partition, compared once from its log start to the high watermark of the moment in which it begins.

    Replicas of the ISR are read in windows of offsets that all of them have answered, and each one is compared with the
    first, the leader's. Records below the watermark never change, but for cleaners and the start of the log, so that it
    does not matter who leads later: a replica that fails is asked again as long as it is in the ISR, and left out when
    it is not.

    Invariant: a difference is reported only if both replicas, read again, still have it, are in the ISR, and the topic
    was not deleted meanwhile.
    """

    def __init__(
        self, source: ReplicaSource, topic: str, partition: int, *, is_compacted: bool, progress: Progress
    ) -> None:
        self._source = source
        self._topic = topic
        self._partition = partition
        self._is_compacted = is_compacted
        self._progress = progress
        self._outcome = PartitionOutcome(topic, partition)
        self._streams: dict[int, ReplicaStream] = {}
        self._pairs: list[ReplicaPair] = []
        self._topic_id: object = None
        self._position = 0
        self._start_offset = 0

    def run(self) -> PartitionOutcome:
        """Compare and return what was found. Raises ClientError if the cluster does not answer."""
        outcome = self._outcome
        state = self._source.partitions(self._topic).get(self._partition)
        if state is None:
            outcome.note = "the topic was deleted"
        elif state.leader < 0:
            outcome.note = "it has no leader"
        else:
            self._topic_id = state.topic_id
            try:
                self._compare(state)
            except UnknownTopicError:
                self._note_deletion()
            except ClientError:
                state = self._source.partitions(self._topic).get(self._partition)
                if state is None or state.leader >= 0:
                    raise
                outcome.note = "it has lost its leader meanwhile"
        return outcome

    def _compare(self, state: PartitionReplicas) -> None:
        self._begin(state)
        if len(self._streams) < 2:
            self._outcome.note = f"it has {len(self._streams) or 'no'} replica in the ISR to compare"
        else:
            self._compare_all()

    def _note_deletion(self) -> None:
        self._outcome.differences.clear()
        self._outcome.note = "the topic was deleted meanwhile"

    def _begin(self, state: PartitionReplicas) -> None:
        start, end = self._source.bounds(self._topic, self._partition)
        self._position = self._start_offset = start
        self._outcome.start_offset, self._outcome.end_offset = start, end
        for broker in sorted(state.replicas, key=lambda each: each != state.leader):
            reason = _why_not(state, broker)
            if reason is None:
                self._streams[broker] = ReplicaStream(broker, start)
            else:
                self._outcome.skipped[broker] = reason
        self._pair_up()

    def _pair_up(self) -> None:
        """Compare every replica with the first one."""
        brokers = list(self._streams)
        for pair in self._pairs:
            # Of another first replica: which records the others lack is not known of this one.
            self._outcome.unfollowed += len(pair.unmatched) + pair.unmatched.dropped
        self._pairs = [ReplicaPair(brokers[0], other, is_compacted=self._is_compacted) for other in brokers[1:]]

    # -- the walk

    def _compare_all(self) -> None:
        self._walk(self._outcome.end_offset, self._compare_window)
        if any(len(pair.unmatched) for pair in self._pairs):
            # What a replica lacks was replaced by a record below its watermark of the time in which it was read.
            _, end = self._source.bounds(self._topic, self._partition)
            self._walk(end, self._explain_window)
            for pair in list(self._pairs):
                self._report_lacking(pair)
        outcome = self._outcome
        outcome.unfollowed += sum(pair.unmatched.dropped for pair in self._pairs)
        outcome.end_offset = min(outcome.end_offset, self._position)
        outcome.start_offset = min(self._start_offset, outcome.end_offset)
        outcome.compared = tuple(self._streams)
        if len(outcome.compared) < 2 and not outcome.differences and not outcome.note:
            outcome.note = "no second replica was left to compare"
        if not self._is_same_topic(self._source.partitions(self._topic)):
            self._note_deletion()

    def _walk(self, end_offset: int, handle_window: Callable[[int], None]) -> None:
        """Read all replicas up to an offset, and handle each window that all of them have answered."""
        while self._position < end_offset and len(self._streams) > 1:
            self._read_slowest(end_offset)
            if len(self._streams) < 2:
                return
            window_end = min(end_offset, *(stream.next_offset for stream in self._streams.values()))
            self._raise_start(max(stream.log_start_offset for stream in self._streams.values()))
            if window_end > self._position:
                handle_window(window_end)
                self._position = window_end

    def _raise_start(self, offset: int) -> None:
        """Compare nothing below the greatest log start: retention and DeleteRecords go on, on each broker by itself."""
        if offset > self._start_offset:
            self._start_offset = offset
            for pair in self._pairs:
                pair.unmatched.forget_below(offset)

    def _compare_window(self, end_offset: int) -> None:
        taken = {broker: each.take(self._start_offset, end_offset) for broker, each in self._streams.items()}
        first = next(iter(self._streams))
        size = sum(len(batch.data) for batch in taken[first])
        self._outcome.compared_bytes += size
        self._progress(end_offset, size)
        for pair in list(self._pairs):
            one, other = (taken[broker] for broker in pair.brokers)
            while (difference := pair.compare(one, other)) is not None:
                try:
                    is_confirmed = self._is_confirmed(pair, difference.offset)
                except UnconfirmedError as error:
                    self._leave_out_unconfirmed(pair, difference.offset, error)
                    break
                if is_confirmed:
                    self._outcome.differences.append(difference)
                    self._drop_pair(pair)
                    break
                one = [batch for batch in one if batch.base_offset > difference.offset]
                other = [batch for batch in other if batch.base_offset > difference.offset]

    def _explain_window(self, end_offset: int) -> None:
        taken = {broker: each.take(self._start_offset, end_offset) for broker, each in self._streams.items()}
        self._progress(end_offset, 0)
        for pair in self._pairs:
            for broker in pair.brokers:
                pair.explain(taken[broker])

    # -- reading

    def _read_slowest(self, end_offset: int) -> None:
        """Fetch from the replicas of which nothing is left to compare."""
        due = {
            broker: stream.next_offset
            for broker, stream in self._streams.items()
            if stream.next_offset <= self._position < end_offset
        }
        if not due:
            return
        answers = self._source.fetch(self._topic, self._partition, due, FETCH_BYTES_MAX)
        failures = {broker: self._take_answer(self._streams[broker], answers[broker]) for broker in due}
        failed = {broker: failure for broker, failure in failures.items() if failure is not None}
        if failed:
            self._handle_failures(failed)

    def _take_answer(self, stream: ReplicaStream, answer: CompletedFetch | ClientError) -> _Failure | None:
        """Take over an answer; return why the replica does not get on, None if it does."""
        if isinstance(answer, ClientError):
            return _Failure(str(answer), is_answer=False)
        try:
            if stream.feed(answer, is_compacted=self._is_compacted):
                stream.failing_since_s = None
                return None
        except CorruptRecordsError as error:
            return _Failure(f"its answer is no record batch, {error}", is_answer=True)
        if answer.error_code:
            return _Failure(f"it answers {error_name(answer.error_code)}", is_answer=True)
        return _Failure("it has no records from there on", is_answer=True)

    def _handle_failures(self, failures: Mapping[int, _Failure]) -> None:
        """Leave out replicas that are in the ISR no more, or fail for too long."""
        now_s = self._source.now_s()
        states = self._source.partitions(self._topic)
        if not self._is_same_topic(states):
            self._streams.clear()
            return
        for broker, failure in failures.items():
            stream = self._streams[broker]
            if stream.failing_since_s is None:
                stream.failing_since_s = now_s
            gone = _why_not(states[self._partition], broker)
            if gone is not None:
                self._leave_out(broker, f"{gone} since the comparison reached offset {self._position}")
            elif now_s - stream.failing_since_s >= PATIENCE_S:
                reason = f"broker {broker} is in the ISR, and for {PATIENCE_S:.0f} s {failure.reason}"
                if failure.is_answer and self._has_shrunk(stream.next_offset):
                    return
                if failure.is_answer:
                    others = [each for each in self._streams if each != broker]
                    brokers = (others[0] if others else broker, broker)
                    self._outcome.differences.append(ReplicaDifference(stream.next_offset, reason, brokers))
                self._leave_out(broker, f"{reason}; compared up to offset {self._position}")
        self._source.sleep(RETRY_S)

    def _has_shrunk(self, offset: int) -> bool:
        """End the comparison if the leader's log, too, ends at an offset now: an unclean election has cut it."""
        _, end = self._source.bounds(self._topic, self._partition)
        if end > offset:
            return False
        self._outcome.note = f"its end has fallen to {end} meanwhile; compared up to offset {self._position}"
        self._streams.clear()
        return True

    def _is_same_topic(self, states: Mapping[int, PartitionReplicas]) -> bool:
        state = states.get(self._partition)
        return state is not None and state.topic_id == self._topic_id

    def _leave_out(self, broker: int, reason: str) -> None:
        self._outcome.skipped[broker] = reason
        was_first = next(iter(self._streams)) == broker
        del self._streams[broker]
        if was_first and self._streams:
            self._pair_up()
        else:
            self._pairs = [pair for pair in self._pairs if broker not in pair.brokers]

    def _leave_out_unconfirmed(self, pair: ReplicaPair, offset: int, error: UnconfirmedError) -> None:
        one, other = pair.brokers
        self._outcome.unconfirmed += 1
        self._leave_out(other, f"it seems to differ from broker {one} at offset {offset}, and {error}")

    def _drop_pair(self, pair: ReplicaPair) -> None:
        """Compare a replica no further: its first difference is known."""
        self._pairs.remove(pair)
        del self._streams[pair.brokers[1]]

    # -- second looks

    def _report_lacking(self, pair: ReplicaPair) -> None:
        """Report the first record that one replica lacks, and whose key has no later record."""
        for record in itertools.islice(pair.unmatched.remaining(), CONFIRMED_MAX):
            try:
                is_lacking = record.offset >= self._start_offset and self._is_lacking(pair, record)
            except UnconfirmedError as error:
                self._leave_out_unconfirmed(pair, record.offset, error)
                return
            if is_lacking:
                reason = (
                    f"broker {record.lacking} lacks the record, which broker {record.keeper} has as the last one of "
                    "its key"
                )
                self._outcome.differences.append(ReplicaDifference(record.offset, reason, pair.brokers))
                self._drop_pair(pair)
                return

    def _is_lacking(self, pair: ReplicaPair, record: Unmatched) -> bool:
        again = self._look_again(pair, record.offset)
        if again is None:
            return False
        fresh, difference = again
        found = {(each.offset, each.lacking) for each in fresh.unmatched.remaining()}
        return difference is not None or (record.offset, record.lacking) in found

    def _is_confirmed(self, pair: ReplicaPair, offset: int) -> bool:
        """Whether both replicas, read again, differ at an offset."""
        again = self._look_again(pair, offset)
        return again is not None and again[1] is not None

    def _look_again(self, pair: ReplicaPair, offset: int) -> tuple[ReplicaPair, ReplicaDifference | None] | None:
        """Compare what two replicas have at an offset now; None if that is of no interest any more.

        A cleaner or retention may have come between the two reads, or an unclean election.

        Raises:
            UnconfirmedError: One of them does not answer, or has left the ISR.
        """
        deadline_s = self._source.now_s() + PATIENCE_S
        found: dict[int, list[ReplicaBatch]] = {}
        while True:
            self._source.sleep(RETRY_S)
            missing = {broker: offset for broker in pair.brokers if broker not in found}
            answers = self._source.fetch(self._topic, self._partition, missing, bytes_max=1)
            for broker, answer in answers.items():
                if isinstance(answer, ClientError):
                    continue
                if answer.error_code == OFFSET_OUT_OF_RANGE:
                    return None
                has_answered = len(answer.records) or (self._is_compacted and answer.high_watermark > offset)
                if has_answered and not answer.error_code:
                    found[broker] = _at(offset, answer)
            if len(found) == len(pair.brokers):
                break
            if self._source.now_s() >= deadline_s:
                break
        states = self._source.partitions(self._topic)
        if not self._is_same_topic(states):
            return None
        for broker in pair.brokers:
            gone = _why_not(states[self._partition], broker)
            if gone is not None:
                raise UnconfirmedError(f"broker {broker} is {gone} since then")
            if broker not in found:
                raise UnconfirmedError(f"broker {broker} does not answer again")
        fresh = ReplicaPair(*pair.brokers, is_compacted=self._is_compacted)
        one, other = (found[broker] for broker in pair.brokers)
        return fresh, fresh.compare(one, other)


def _at(offset: int, answer: CompletedFetch) -> list[ReplicaBatch]:
    """Return the batch of an answer that has an offset; none, if there is none."""
    try:
        batches = whole_batches(answer.records)
    except CorruptRecordsError:
        return []
    return [batch for batch in batches if batch.base_offset <= offset <= batch.last_offset]


def _why_not(state: PartitionReplicas, broker: int) -> str | None:
    """Return why a replica is not to be compared; None if it is."""
    if broker in state.offline:
        return "offline"
    return None if broker in state.isr else "not in the ISR"
