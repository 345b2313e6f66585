"""Which partition of its topic keeps a group or a transactional id, hence which broker coordinates it."""


def partition_for(name: str, partition_count: int) -> int:
    """The absolute value of Java's String.hashCode, modulo; clients' tools compute it too.

    >>> partition_for("grouphelper-g", 50)
    23
    """
    code = 0
    if name.isascii():
        for unit in name.encode():
            code = (31 * code + unit) & 0xFFFFFFFF
    else:  # Java counts UTF-16 units
        data = name.encode("utf-16-be", "surrogatepass")
        for high, low in zip(data[::2], data[1::2], strict=True):
            code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    if code >= 0x80000000:
        code = 0x1_0000_0000 - code
    # The absolute value of the smallest int does not exist; Kafka takes 0.
    return 0 if code == 0x80000000 else code % partition_count
