"""The start offsets of the leader epochs of a partition (KIP-101, KIP-279)."""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from headwater.logtier.log.directory_health import is_no_space
from headwater.logtier.runtime.disk import Disk

EPOCHS_FILE: Final = "leader-epoch-checkpoint"
_VERSION: Final = 0
UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class EpochEnd(NamedTuple):
    """A leader epoch and the offset after its last record."""

    leader_epoch: int
    end_offset: int


class LeaderEpochs:
    """The leader epoch history of one log: pairs of (epoch, start offset), from which replicas find where they diverge.

    Invariant: epochs and offsets strictly increase. File: `leader-epoch-checkpoint`, text: version, count, one pair a
    line. It is written at every change without a sync, and is on the device with the next sync of the log. After a
    power loss it may be an older one or a torn one: a start restores the epochs of the batches that it checks, and all
    of them if the file is not whole.
    """

    __slots__ = ("_disk", "_epochs", "_path", "_start_offsets", "latest")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{EPOCHS_FILE}"
        self._epochs: list[int] = []
        self._start_offsets: list[int] = []
        self.latest = UNDEFINED_EPOCH

    def load(self) -> bool:
        """Read the file; return False, without epochs, if it is missing or not whole."""
        try:
            self._parse(self._disk.read(self._path).decode())
        except (FileNotFoundError, ValueError):
            self._set([], [])
            return False
        return True

    def note_moved(self, directory: str) -> None:
        """Use the file in the renamed folder."""
        self._path = f"{directory}/{EPOCHS_FILE}"

    def entries(self) -> list[tuple[int, int]]:
        """Return (epoch, start offset) of every epoch, oldest first."""
        return list(zip(self._epochs, self._start_offsets, strict=True))

    def assign(self, leader_epoch: int, start_offset: int) -> None:
        """Record that `leader_epoch` begins at `start_offset`, the log end, unless newer epochs have records.

        Raises:
            OSError: The file cannot be written; the history is unchanged.
        """
        if leader_epoch == self.latest:
            return
        epochs, start_offsets = self._epochs, self._start_offsets
        # Epochs that began here wrote nothing, also newer ones: of a leader that was elected and deposed at once.
        keep = bisect_right(start_offsets, start_offset - 1)
        if keep and leader_epoch <= epochs[keep - 1]:
            if keep == len(epochs):
                return
            self._set(epochs[:keep], start_offsets[:keep])
        else:
            self._set([*epochs[:keep], leader_epoch], [*start_offsets[:keep], start_offset])
        try:
            self._write()
        except OSError:
            self._set(epochs, start_offsets)
            raise

    def restore(self, offset: int, epochs: Iterable[tuple[int, int]]) -> None:
        """Replace the entries at or after `offset` by epochs found in the batches; write the file if they differ."""
        before = self.entries()
        keep = bisect_right(self._start_offsets, offset - 1)
        pairs = before[:keep]
        for leader_epoch, start_offset in epochs:
            if leader_epoch > (pairs[-1][0] if pairs else UNDEFINED_EPOCH):
                pairs.append((leader_epoch, start_offset))
        if pairs != before:
            self._set([epoch for epoch, _ in pairs], [start for _, start in pairs])
            self._write()

    def end_offset_for(self, leader_epoch: int, log_end_offset: int) -> EpochEnd:
        """Return the greatest epoch at or below the given one and its end offset (OffsetForLeaderEpoch).

        The result is undefined for an epoch newer than the latest. For an epoch older than the history the epoch itself
        and the first start offset are returned.
        """
        if leader_epoch == UNDEFINED_EPOCH or leader_epoch > self.latest or not self._epochs:
            return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        if leader_epoch == self.latest:
            return EpochEnd(leader_epoch, log_end_offset)
        following = bisect_right(self._epochs, leader_epoch)
        if following == 0:
            return EpochEnd(leader_epoch, self._start_offsets[0])
        return EpochEnd(self._epochs[following - 1], self._start_offsets[following])

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the record at `offset`, UNDEFINED_EPOCH if it is unknown."""
        i = bisect_right(self._start_offsets, offset)
        return self._epochs[i - 1] if i else UNDEFINED_EPOCH

    def clear(self) -> None:
        """Remove all epochs: the log begins anew."""
        self._set([], [])
        self._write()

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that began at or after `end_offset`."""
        keep = bisect_right(self._start_offsets, end_offset - 1)
        if keep < len(self._epochs):
            self._set(self._epochs[:keep], self._start_offsets[:keep])
            self._write()

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that ended before `start_offset`; the epoch of that offset now begins with it.

        On a full disk the file keeps the old entries until the next start.
        """
        first = bisect_right(self._start_offsets, start_offset) - 1
        if first < 0 or self._start_offsets[first] == start_offset == self._start_offsets[0]:
            return
        self._set(self._epochs[first:], [start_offset, *self._start_offsets[first + 1 :]])
        try:
            self._write()
        except OSError as error:
            if not is_no_space(error):
                raise

    def _set(self, epochs: list[int], start_offsets: list[int]) -> None:
        self._epochs = epochs
        self._start_offsets = start_offsets
        self.latest = epochs[-1] if epochs else UNDEFINED_EPOCH

    def _parse(self, text: str) -> None:
        if not text.endswith("\n"):
            raise ValueError(f"{self._path} is cut off")  # perhaps within a number
        version, count, *lines = text.splitlines()
        pairs = [(int(epoch), int(offset)) for epoch, offset in (line.split() for line in lines)]
        if int(version) != _VERSION or int(count) != len(pairs) or pairs != sorted(set(pairs)):
            raise ValueError(f"{self._path} is damaged")
        self._set([epoch for epoch, _ in pairs], [offset for _, offset in pairs])

    def _write(self) -> None:
        lines = [str(_VERSION), str(len(self._epochs)), *(f"{epoch} {offset}" for epoch, offset in self.entries())]
        self._disk.write_atomic(self._path, ("\n".join(lines) + "\n").encode(), sync=False)
