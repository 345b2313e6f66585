"""A TCP proxy that holds up or cuts the connections through it, as a network does."""

from __future__ import annotations

import asyncio
import contextlib

CHUNK_BYTES = 1 << 16


class CuttingProxy:
    """Passes connections on to one port of 127.0.0.1, on the event loop of the test.

    Held bytes stay in order, and pass later unless their connection is reset meanwhile.

    Attributes:
        port: Where it listens.
        held_answers: The largest chunk from the server that was held since `hold`.
        answer_bytes_max: A connection is cut before the chunk with which the server has sent more; None: never.
    """

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.held_answers = 0
        self.answer_bytes_max: int | None = None
        self._target_port = target_port
        self._requests = asyncio.Event()
        self._answers = asyncio.Event()
        self._requests.set()
        self._answers.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.release()
        self.reset()
        await asyncio.gather(*self._tasks)

    def hold(self, *, requests: bool = True, answers: bool = True) -> None:
        """Let nothing pass in one direction or both."""
        self.held_answers = 0
        if requests:
            self._requests.clear()
        if answers:
            self._answers.clear()

    def release(self) -> None:
        """Let everything pass."""
        self._requests.set()
        self._answers.set()

    def reset(self) -> None:
        """Cut all connections; what is held of them is lost."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            self._writers.add(writer)
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            if writer not in self._writers:
                server_writer.transport.abort()
                return
            self._writers.add(server_writer)
            await asyncio.gather(
                self._pump(reader, server_writer, self._requests), self._pump(server_reader, writer, self._answers)
            )
        except OSError:
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if gate is self._answers and not gate.is_set():
                    self.held_answers = max(self.held_answers, len(data))
                await gate.wait()
                passed += len(data)
                if gate is self._answers and self.answer_bytes_max is not None and passed > self.answer_bytes_max:
                    break
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
