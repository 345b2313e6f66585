"""Regular expressions over topic names, in time linear in the name, whatever the expression (KIP-848 asks for RE2's).

Python's `re` tries alternatives one after the other, so one subscription could hold up the broker for hours. This runs
all of them at once: the expression becomes a nondeterministic automaton, of which the deterministic one is made step by
step, as names need it.
"""

from collections.abc import Iterable
from typing import Final

from headwater.logtier.group.regex_syntax import (
    WORD,
    Alternatives,
    Assertion,
    Characters,
    InvalidRegexError,
    Node,
    Repetition,
    Sequence,
    parse_regex,
)

#: Counted repetitions are written out; together they may come to this many instructions.
INSTRUCTIONS_MAX: Final = 5000
#: States of the deterministic automaton that are kept; then they are made anew.
STATES_MAX: Final = 1000

_BEGIN, _WORD, _OTHER = range(3)
_END: Final = ""


class TopicRegex:
    """A compiled expression; matches whole names.

    >>> TopicRegex("(eu|us)-[a-z]+").matches("eu-orders"), TopicRegex("(eu|us)-[a-z]+").matches("eu-orders-2")
    (True, False)

    Raises:
        InvalidRegexError: (constructor) it is not RE2's syntax, or becomes too large.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        program = _Program()
        accepts = program.add_accept()
        self._start = program.compile(parse_regex(text), accepts)
        self._program = program
        self._accepts = accepts
        self._forget()

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        state = self._first
        moves = self._moves
        for letter in name:
            following = moves[state].get(letter)
            state = self._step(state, letter) if following is None else following
            moves = self._moves  # a step may have begun a new cache
        ended = moves[state].get(_END)
        return bool(self._step(state, _END) if ended is None else ended)

    def matching(self, names: Iterable[str]) -> frozenset[str]:
        """The names that match."""
        return frozenset(name for name in names if self.matches(name))

    def _forget(self) -> None:
        #: What state and last character make one of the deterministic automaton.
        self._ids: dict[tuple[frozenset[int], int], int] = {}
        self._states: list[tuple[frozenset[int], int]] = []
        self._moves: list[dict[str, int]] = []
        self._first = self._id_of(frozenset((self._start,)), _BEGIN)

    def _id_of(self, instructions: frozenset[int], before: int) -> int:
        key = (instructions, before)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self._states)
            self._states.append(key)
            self._moves.append({})
        return found

    def _step(self, state: int, letter: str) -> int:
        """Where a character leads; at the end of a name 1 or 0: whether it is accepted."""
        instructions, before = self._states[state]
        bit = 1 << ord(letter) if letter and ord(letter) < 128 else 0
        is_word = bool(bit & WORD)
        reached = self._program.closure(instructions, self._holds(before, is_end=not letter, is_word=is_word))
        if not letter:
            accepted = int(self._accepts in reached)
            self._moves[state][letter] = accepted
            return accepted
        after = frozenset(
            self._program.following[each]
            for each in reached
            if self._program.masks[each] & bit and each != self._accepts
        )
        if len(self._states) >= STATES_MAX:
            self._forget()
            return self._id_of(after, _WORD if is_word else _OTHER)
        found = self._id_of(after, _WORD if is_word else _OTHER)
        self._moves[state][letter] = found
        return found

    @staticmethod
    def _holds(before: int, *, is_end: bool, is_word: bool) -> frozenset[Assertion]:
        held = [Assertion.WORD_BOUNDARY if (before == _WORD) != is_word else Assertion.NO_WORD_BOUNDARY]
        if before == _BEGIN:
            held.append(Assertion.BEGIN)
        if is_end:
            held.append(Assertion.END)
        return frozenset(held)


class _Program:
    """Instructions: a set of characters and what follows, or where to go on without one.

    Built from the end: an instruction is made after those that follow it, but for the jump back of a repetition.
    """

    def __init__(self) -> None:
        self.masks: list[int] = []
        self.following: list[int] = []
        self._jumps: list[tuple[int, ...]] = []
        self._conditions: list[Assertion | None] = []

    def add_accept(self) -> int:
        return self._add()

    def compile(self, node: Node, following: int) -> int:
        """Instructions for a node that go on at `following`; where they begin."""
        match node:
            case Characters():
                return self._add(mask=node.mask, following=following)
            case Assertion():
                return self._add(jumps=(following,), condition=node)
            case Sequence():
                for part in reversed(node.parts):
                    following = self.compile(part, following)
                return following
            case Alternatives():
                return self._add(jumps=tuple([self.compile(choice, following) for choice in node.choices]))
            case Repetition():
                return self._repeat(node, following)

    def closure(self, instructions: Iterable[int], holds: frozenset[Assertion]) -> set[int]:
        """All instructions that are reached without a character."""
        reached = set(instructions)
        left = list(reached)
        while left:
            at = left.pop()
            condition = self._conditions[at]
            if condition is None or condition in holds:
                for target in self._jumps[at]:
                    if target not in reached:
                        reached.add(target)
                        left.append(target)
        return reached

    def _repeat(self, node: Repetition, following: int) -> int:
        if node.most is None:
            loop = self._add()
            self._jumps[loop] = (self.compile(node.body, loop), following)
            start = loop
        else:
            start = following
            for _ in range(node.most - node.least):
                start = self._add(jumps=(self.compile(node.body, start), following))
        for _ in range(node.least):
            start = self.compile(node.body, start)
        return start

    def _add(
        self, *, mask: int = 0, following: int = -1, jumps: tuple[int, ...] = (), condition: Assertion | None = None
    ) -> int:
        if len(self.masks) >= INSTRUCTIONS_MAX:
            raise InvalidRegexError(
                f"the expression is too large: its repetitions make more than {INSTRUCTIONS_MAX} steps"
            )
        self.masks.append(mask)
        self.following.append(following)
        self._jumps.append(jumps)
        self._conditions.append(condition)
        return len(self.masks) - 1
