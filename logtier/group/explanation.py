"""The causes of a rebalance, in one line of the log: the first question about a stalled consumer."""

#: Maximum number of causes in a line: a group of a thousand members must not fill the log.
CHANGES_MAX = 20
#: Maximum length of ids and reasons, which clients choose freely.
CAUSE_CHARS_MAX = 400


class Explanation:
    """Collects the causes of a rebalance until its completion."""

    __slots__ = ("_causes", "_left_out", "_started_ms")

    def __init__(self) -> None:
        self._causes: list[str] = []
        self._left_out = 0
        self._started_ms = 0

    def begin(self, now_ms: int) -> None:
        """Start a rebalance."""
        self._started_ms = now_ms

    def elapsed_ms(self, now_ms: int) -> int:
        """Return the duration of the rebalance so far, in milliseconds."""
        return now_ms - self._started_ms

    def add(self, cause: str, client_reason: str = "") -> None:
        """Add a cause, with the client's reason (KIP-800)."""
        if len(self._causes) < CHANGES_MAX:
            text = f"{cause} ({client_reason})" if client_reason else cause
            self._causes.append(text if len(text) <= CAUSE_CHARS_MAX else f"{text[:CAUSE_CHARS_MAX]}...")
        else:
            self._left_out += 1

    def finish(self, outcome: str, now_ms: int) -> str:
        """Return the line, and drop the collected causes.

        >>> why = Explanation()
        >>> why.begin(1000)
        >>> why.add("member a joined", "first poll")
        >>> why.finish("group g: generation 1 with 1 member", 4000)
        'group g: generation 1 with 1 member, after 3000 ms: member a joined (first poll)'
        """
        if self._left_out:
            self._causes.append(f"and {self._left_out} more changes")
        line = f"{outcome}, after {self.elapsed_ms(now_ms)} ms: {'; '.join(self._causes)}"
        self._causes, self._left_out = [], 0
        # One line, also with line breaks in clients' ids.
        return line if line.isprintable() else line.encode("unicode_escape").decode()
