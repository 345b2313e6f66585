"""Names of the columns that carry a record's origin through a stage.

They begin with '_' and are reserved: a value's own field of such a name is refused. A topic sink leaves them out of the
value; a Delta sink keeps those of `KEPT`, so that each row says which record or file it came from.
"""

TOPIC = "_topic"
PARTITION = "_partition"
OFFSET = "_offset"
TIMESTAMP = "_timestamp"
KEY = "_key"
VALUE = "_value"

FILE = "_file"  # path of the file that a row comes from
SOURCE_POSITION = "_source_position"  # where the database wrote a change (Debezium), as text that sorts so
OPERATION = "_op"  # kind of a change in an envelope (Debezium)
EVENT = "_event"  # name of the event type that a record is of

LINEAGE = (TOPIC, PARTITION, OFFSET, TIMESTAMP)
KEPT = (*LINEAGE, FILE)  # what a table keeps
#: What orders changes with the same sequence, the most significant first.
POSITION = (SOURCE_POSITION, OFFSET, PARTITION, TOPIC)
ORIGIN = (*LINEAGE, KEY, VALUE)

ERROR = "_error"  # why a record could not be decoded; null for those that could
FAILED = "_failed"  # name of the first expectation that a row does not meet; null for those that meet all

MARK = "_headwater_mark_"  # begins the names of columns that only a micro-batch's cached rows have

HEADERS_SEEN = "_headers_seen"  # whether a record, or one that was read with it, has headers

RESERVED = (*ORIGIN, FILE, SOURCE_POSITION, ERROR, FAILED, HEADERS_SEEN)

# Schema of `format("headwater")` and `format("kafka")`, as far as stages use it.
RECORD_DDL = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"


def quoted(name: str) -> str:
    """A name as Spark SQL has it.

    >>> quoted("a.b")
    '`a.b`'
    """
    return "`" + name.replace("`", "``") + "`"
