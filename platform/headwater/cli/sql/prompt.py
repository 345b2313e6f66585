"""The shell's prompt: editing over several lines, history, completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prompt_toolkit import PromptSession
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from headwater.pipelines.sql_text.scanner import SqlTokenKind, statements, tokens

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output

__all__ = ["EXIT_WORDS", "Prompt", "is_whole"]

PROMPT: Final = "headwater> "
CONTINUATION: Final = "        -> "
EXIT_WORDS: Final = ("exit", "quit")  # as in spark-sql, with or without a semicolon
INPUT_CHARS_MAX: Final = 1 << 20


def is_whole(text: str) -> bool:
    """Whether Enter ends the input: its last statement has its semicolon, or it is blank or a word to leave.

    >>> is_whole("SELECT 1;"), is_whole("SELECT 1"), is_whole("SELECT ';"), is_whole(" exit ")
    (True, False, False, True)
    """
    stripped = text.strip()
    if not stripped or stripped.lower() in EXIT_WORDS:
        return True
    seen = [token for token in tokens(text) if token.kind is not SqlTokenKind.COMMENT or token.is_open]
    return bool(seen) and not seen[-1].is_open and seen[-1].text == ";" and all(s.is_ended for s in statements(text))


class Prompt:
    """Reads inputs of whole statements from a terminal."""

    def __init__(
        self, history: History, completer: Completer, source: Input | None = None, output: Output | None = None
    ) -> None:
        """`source` and `output` replace the terminal."""
        bindings = KeyBindings()

        @bindings.add("enter")
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if is_whole(buffer.text) or len(buffer.text) > INPUT_CHARS_MAX:
                buffer.validate_and_handle()
            else:
                buffer.insert_text("\n")

        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=CONTINUATION,
            history=history,
            completer=completer,
            complete_in_thread=True,
            complete_while_typing=False,
            enable_history_search=True,
            key_bindings=bindings,
            input=source,
            output=output,
        )

    def read(self) -> str:
        """Read an input. Raises KeyboardInterrupt for Ctrl-C, EOFError for Ctrl-D on an empty line."""
        text: Any = self._session.prompt()
        return str(text)
