"""The fence found in a log is the one that was committed last, whatever other stages did in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.records.batch import TRANSACTIONAL, Record, build_batch, end_transaction_marker
from headwater.pipelines.sinks.exactly_once.exactly_once_fence import latest_committed

STAGES = 3
# (stage, what it does): write its fence in its transaction, commit or abort it, or come back under a new producer id.
STEPS = st.lists(
    st.tuples(st.integers(0, STAGES - 1), st.sampled_from(["write", "commit", "abort", "new id"])), max_size=40
)


@given(STEPS, st.integers(1, 5))
def test_the_fence_found_is_the_last_committed_one(steps: list[tuple[int, str]], chunk_batches: int) -> None:
    log: list[bytes] = []
    producer_ids = dict(enumerate(range(100, 100 + STAGES)))
    open_values: dict[int, bytes] = {}
    committed: dict[int, bytes | None] = dict.fromkeys(range(STAGES))

    def end(stage: int, is_commit: bool) -> None:
        if stage not in open_values:
            return
        value = open_values.pop(stage)
        if is_commit:
            committed[stage] = value
        log.append(
            end_transaction_marker(
                committed=is_commit,
                producer_id=producer_ids[stage],
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=1,
                base_offset=len(log),
            )
        )

    for number, (stage, what) in enumerate(steps):
        if what == "write":
            open_values[stage] = value = b"%d" % number
            log.append(
                build_batch(
                    [Record(b"stage-%d" % stage, value, 1)],
                    base_offset=len(log),
                    producer_id=producer_ids[stage],
                    producer_epoch=0,
                    base_sequence=0,
                    attributes=TRANSACTIONAL,
                )
            )
        else:
            # InitProducerId aborts what is open before it gives another id.
            end(stage, what == "commit")
            if what == "new id":
                producer_ids[stage] += STAGES
    for asking in range(STAGES):
        if asking in open_values:
            continue  # a stage reads its fence only when nothing of its own is open
        chunks = [b"".join(log[at : at + chunk_batches]) for at in range(0, len(log), chunk_batches)]
        assert latest_committed(chunks, b"stage-%d" % asking) == committed[asking]
