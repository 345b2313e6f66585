"""Why a group rebalanced, in one line: what people ask first about a consumer that stalls."""

#: How many causes the line names; a group of a thousand members must not fill the log.
CHANGES_MAX = 20
#: Ids and reasons are whatever clients make them.
CAUSE_CHARS_MAX = 400


class Explanation:
    """Gathers the causes of one rebalance until it is complete."""

    __slots__ = ("_causes", "_left_out", "_started_ms")

    def __init__(self) -> None:
        self._causes: list[str] = []
        self._left_out = 0
        self._started_ms = 0

    def begin(self, now_ms: int) -> None:
        """A rebalance starts."""
        self._started_ms = now_ms

    def elapsed_ms(self, now_ms: int) -> int:
        """How long the rebalance has been going on."""
        return now_ms - self._started_ms

    def add(self, cause: str, client_reason: str = "") -> None:
        """Name one more cause, with what the client says about it (KIP-800)."""
        if len(self._causes) < CHANGES_MAX:
            text = f"{cause} ({client_reason})" if client_reason else cause
            self._causes.append(text if len(text) <= CAUSE_CHARS_MAX else f"{text[:CAUSE_CHARS_MAX]}...")
        else:
            self._left_out += 1

    def finish(self, outcome: str, now_ms: int) -> str:
        """The line; what was gathered is forgotten.

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
        # One line, whatever clients call themselves.
        return line if line.isprintable() else line.encode("unicode_escape").decode()
