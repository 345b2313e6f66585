"""What the indexes of a segment have in them, whether they are in memory or in their files."""

from headwater.logtier.log.segments.segment import LogSegment


def index_entries(segment: LogSegment) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """All entries of the offset index and of the time index; the segment stays as it is."""
    twin = segment.twin(is_growing=True)
    offset_index, time_index = twin._indexes or twin._load_whole_indexes()
    return offset_index.entries(), time_index.entries()
