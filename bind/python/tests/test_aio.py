"""Tests the properties that only `fordway.aio` has: cancelled calls, ends of blocks, forks and signatures."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from gateways import KEYS
from scripted_server import FAILED, scripted

import fordway
import fordway.aio
from fordway import errors
from fordway.streams import ObjectReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

BUCKET = "bucket"
SOON_S = 20
"""A time in seconds: longer than any cancelled call takes on a busy machine, and shorter than the time after
which a call stops waiting for a silent server (150 s).
"""


@pytest.fixture
def place(tmp_path: Path) -> str:
    (tmp_path / BUCKET).mkdir()
    return f"file://{tmp_path}"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The endpoint of a server that accepts connections, and never answers."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def in_child(work: Callable[[], None]) -> int:
    """Returns the exit status of a forked child that runs `work`."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def test_a_forked_child_uses_the_store_of_its_parent(place: str) -> None:
    twin = fordway.aio.open(place)
    asyncio.run(twin.put(BUCKET, "key", b"content"))

    async def read() -> None:
        async with asyncio.timeout(SOON_S), twin:
            assert await twin.get(BUCKET, "key") == b"content"

    assert in_child(lambda: asyncio.run(read())) == 0
    asyncio.run(read())


def test_a_forked_child_leaves_an_upload_to_its_parent(place: str) -> None:
    twin = fordway.aio.open(place)
    upload = asyncio.run(twin.upload(BUCKET, "key"))
    asyncio.run(upload.put_part(1, b"part"))
    assert in_child(lambda: asyncio.run(upload.__aexit__(None, None, None))) == 0
    assert in_child(lambda: asyncio.run(upload.__aexit__(ValueError, ValueError(), None))) == 0
    asyncio.run(upload.complete())
    assert asyncio.run(twin.get(BUCKET, "key")) == b"part"
    asyncio.run(twin.close())


CALLS: dict[str, Callable[[fordway.aio.AsyncStore], Awaitable[object]]] = {
    "get": lambda twin: twin.get(BUCKET, "key"),
    "put": lambda twin: twin.put(BUCKET, "key", b"content"),
    "put of pieces": lambda twin: twin.put(BUCKET, "key", [bytes(8_000_000)] * 4),
    "put_many": lambda twin: twin.put_many(BUCKET, [("a", b"a"), ("b", b"b")]),
    "get_many": lambda twin: twin.get_many(BUCKET, ["a", "b"]),
    "get_ranges": lambda twin: twin.get_ranges(BUCKET, "key", [(0, 5), (1_000_000, 5)]),
    "list_page": lambda twin: twin.list_page(BUCKET),
    "put_part": lambda twin: twin.resume_upload(BUCKET, "key", "id").put_part(1, b"part"),
    "complete": lambda twin: twin.resume_upload(BUCKET, "key", "id").complete(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_silent_server_can_be_left(silent: str, name: str) -> None:
    async def work() -> None:
        async with fordway.aio.open(silent) as twin:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await CALLS[name](twin)

    begin = time.monotonic()
    asyncio.run(work())
    assert time.monotonic() - begin < SOON_S


def test_an_exception_ends_the_calls_of_the_block(silent: str) -> None:
    async def work() -> asyncio.Future[bytes]:
        with contextlib.suppress(ZeroDivisionError):
            async with fordway.aio.open(silent) as twin:
                waiting = asyncio.ensure_future(twin.get(BUCKET, "key"))
                await asyncio.sleep(0.1)
                raise ZeroDivisionError
        assert twin.closed
        with pytest.raises(errors.CallInterruptedError, match="closed"):
            await waiting

    begin = time.monotonic()
    asyncio.run(work())
    assert time.monotonic() - begin < SOON_S


UPLOADS = """
import asyncio, sys
import fordway


async def main():
    print("ready", flush=True)
    async with fordway.aio.open(sys.argv[1]) as store, store.resume_upload("bucket", "key", "id") as upload:
        await asyncio.gather(upload.put_part(1, b"part"), store.get("bucket", "key"))


asyncio.run(main())
"""

LEAVES_ITS_STORE_OPEN = """
import asyncio, sys
import fordway


async def main():
    print("ready", flush=True)
    store = fordway.aio.open(sys.argv[1])
    await store.get("bucket", "key")


asyncio.run(main())
"""


@pytest.mark.parametrize("program", [UPLOADS, LEAVES_ITS_STORE_OPEN])
def test_ctrl_c_ends_a_program(silent: str, program: str) -> None:
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", listen + program, silent]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout.readline() == "ready\n"
            time.sleep(0.3)
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=6 * SOON_S)
        finally:
            running.kill()
    assert "KeyboardInterrupt" in said and running.returncode != 0


def test_cancelled_calls_do_not_occupy_the_store(silent: str, place: str) -> None:
    async def work() -> None:
        async with fordway.aio.open(silent, threads=2) as twin:
            calls = [asyncio.ensure_future(twin.get(BUCKET, "key")) for _ in range(10)]
            await asyncio.sleep(0.1)
            for call in calls:
                call.cancel()
            async with asyncio.timeout(SOON_S):
                assert await twin.run(lambda _: "another call") == "another call"

    asyncio.run(work())


def test_a_cancelled_put_is_discarded(place: str) -> None:
    goes_on = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b"first"
        goes_on.wait(60)
        yield b"last"

    async def work() -> None:
        async with fordway.aio.open(place) as twin:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await twin.put(BUCKET, "key", pieces())
            await twin.put(BUCKET, "key", b"newer")
            goes_on.set()
        assert fordway.open(place).get(BUCKET, "key") == b"newer"

    asyncio.run(work())
    assert [entry.key for entry in fordway.open(place).list(BUCKET)] == ["key"]


STARTED = b"<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>"
COMPLETED = b"<CompleteMultipartUploadResult><ETag>a</ETag></CompleteMultipartUploadResult>"
PARTS = (
    b"<ListPartsResult><Part><PartNumber>1</PartNumber><ETag>a</ETag><Size>4</Size>"
    b"<LastModified>2026-01-01T00:00:00.000Z</LastModified></Part></ListPartsResult>"
)


@contextlib.contextmanager
def slow_uploads(begin_s: float, abort_s: float) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields the endpoint of a server, and lists to which it adds each upload that it begins and aborts."""
    begun: list[str] = []
    aborted: list[str] = []

    def respond(method: str, path: str, _: bytes) -> tuple[int, dict[str, str], bytes]:
        if method == "POST":
            begun.append(path)
            time.sleep(begin_s)
            return 200, {}, STARTED
        if method == "DELETE":
            time.sleep(abort_s)
            aborted.append(path)
            return 204, {}, b""
        return 200, {"ETag": '"a"'}, b""

    with scripted(respond) as at:
        yield at, begun, aborted


def test_an_upload_that_nobody_knows_is_aborted(silent: str) -> None:
    async def work(at: str, timeout_s: float) -> None:
        async with fordway.aio.open(at) as twin:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await twin.upload(BUCKET, "key")
                    timed_out.append(False)
                    return
            timed_out.append(True)

    with slow_uploads(0.2, 0) as (at, begun, aborted):
        timed_out: list[bool] = []
        for timeout_s in (0.05, 0.1, 0.195, 0.2, 0.203, 0.206, 0.21, 0.25):
            asyncio.run(work(at, timeout_s))
        assert timed_out[0] and len(aborted) == len(begun) - timed_out.count(False)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(_left_at_once(silent))


async def _left_at_once(at: str) -> None:
    async with fordway.aio.open(at) as twin:
        task = asyncio.ensure_future(twin.upload(BUCKET, "key"))
        await asyncio.sleep(0)
        task.cancel()
        raise ZeroDivisionError


async def use_upload(twin: fordway.aio.AsyncStore, sent: asyncio.Event) -> None:
    async with await twin.upload(BUCKET, "key") as upload:
        await upload.put_part(1, b"part")
        sent.set()
        await asyncio.sleep(60)


@pytest.mark.parametrize("cancellations", [1, 2, 3])
def test_cancelling_the_end_of_a_block_leaves_no_upload(silent: str, cancellations: int) -> None:
    async def work(at: str, aborted: list[str]) -> None:
        async with fordway.aio.open(at) as twin:
            sent = asyncio.Event()
            task = asyncio.ensure_future(use_upload(twin, sent))
            await sent.wait()
            for _ in range(cancellations):
                task.cancel()
                await asyncio.sleep(0.1)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(aborted) == 1

    with slow_uploads(0, 0.5) as (at, _, aborted):
        asyncio.run(work(at, aborted))


def test_the_end_of_a_block_goes_on_while_the_loop_shuts_down(silent: str) -> None:
    async def work(at: str) -> None:
        twin, sent = fordway.aio.open(at), asyncio.Event()
        task = asyncio.ensure_future(use_upload(twin, sent))
        await sent.wait()
        task.cancel()
        # The task waits at the end of its block when `asyncio.run` cancels it again.
        await asyncio.sleep(0)

    with slow_uploads(0, 0.5) as (at, _, aborted):
        asyncio.run(work(at))
        assert len(aborted) == 1


def test_the_end_of_a_block_waits_for_a_part_while_the_loop_shuts_down(silent: str) -> None:
    kept: list[asyncio.Future[object]] = []

    async def use(twin: fordway.aio.AsyncStore, sending: threading.Event) -> None:
        async with await twin.upload(BUCKET, "key") as upload:
            kept.append(asyncio.ensure_future(upload.put_part(1, b"part")))
            await arrives(sending)
            raise ZeroDivisionError

    async def work(at: str, sending: threading.Event) -> None:
        kept.append(asyncio.ensure_future(use(fordway.aio.open(at), sending)))
        await arrives(sending)
        # The other task waits for the part at the end of its block when `asyncio.run` cancels it.
        await asyncio.sleep(0.1)

    with held_server("PUT") as server:
        asyncio.run(work(server.at, server.arrived))
        assert server.aborted == 1


async def arrives(event: threading.Event) -> None:
    """Waits for `event`, which another thread sets."""
    async with asyncio.timeout(SOON_S):
        while not event.is_set():
            await asyncio.sleep(0.01)


@dataclass
class HeldServer:
    """A server of uploads that does not respond to one kind of request."""

    held: str
    deleted: tuple[int, dict[str, str], bytes] = (204, {}, b"")
    at: str = ""
    aborted: int = 0
    arrived: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def respond(self, method: str, path: str, _: bytes) -> tuple[int, dict[str, str], bytes]:
        kind = "complete" if method == "POST" and "uploadId" in path else method
        if kind == self.held:
            self.arrived.set()
            self.released.wait(3 * SOON_S)
        if method == "DELETE":
            self.aborted += 1
            return self.deleted
        content = {"POST": STARTED, "GET": PARTS, "complete": COMPLETED}.get(kind, b"")
        return 200, {"ETag": '"a"'}, content


@contextlib.contextmanager
def held_server(held: str, **options: Any) -> Iterator[HeldServer]:  # noqa: ANN401
    server = HeldServer(held, **options)
    with scripted(server.respond) as server.at:
        try:
            yield server
        finally:
            server.released.set()


@pytest.mark.parametrize("deleted", [(204, {}, b""), FAILED])
def test_an_upload_is_aborted_after_a_slow_completion_was_cancelled(
    silent: str, monkeypatch: pytest.MonkeyPatch, deleted: tuple[int, dict[str, str], bytes]
) -> None:
    # This time limits the completion. The abort still has the usual time.
    monkeypatch.setattr("fordway.aio_uploads.GRACE_MS", 100)

    async def use(twin: fordway.aio.AsyncStore) -> None:
        async with await twin.upload(BUCKET, "key") as upload:
            await upload.put_part(1, b"part")

    async def work(server: HeldServer) -> None:
        async with fordway.aio.open(server.at, retries=0) as twin:
            task = asyncio.ensure_future(use(twin))
            await arrives(server.arrived)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as raised:
                await task
        notes = getattr(raised.value, "__notes__", [])
        assert server.aborted >= 1
        assert [note.startswith("upload id is not aborted") for note in notes] == [True] * (deleted == FAILED)

    with held_server("complete", deleted=deleted) as server:
        asyncio.run(work(server))


def test_an_upload_is_aborted_if_the_block_of_its_store_raises(silent: str) -> None:
    async def use(twin: fordway.aio.AsyncStore) -> None:
        async with await twin.upload(BUCKET, "key") as upload:
            await upload.put_part(1, b"part")

    async def work(server: HeldServer) -> None:
        with contextlib.suppress(ZeroDivisionError):
            async with fordway.aio.open(server.at) as twin:
                task = asyncio.ensure_future(use(twin))
                await arrives(server.arrived)
                raise ZeroDivisionError
        with pytest.raises(errors.CallInterruptedError) as raised:
            await task
        assert server.aborted == 1 and not hasattr(raised.value, "__notes__")

    with held_server("PUT") as server:
        asyncio.run(work(server))


def test_an_upload_whose_store_is_closed_is_aborted(silent: str) -> None:
    async def work(at: str) -> None:
        twin = fordway.aio.open(at)
        with pytest.raises(errors.InvalidArgumentError, match="the store is closed"):
            async with await twin.upload(BUCKET, "key"):
                await twin.close()

    with slow_uploads(0, 0) as (at, _, aborted):
        asyncio.run(work(at))
        assert len(aborted) == 1


@contextlib.asynccontextmanager
async def busy_store(at: str) -> AsyncIterator[tuple[fordway.aio.AsyncStore, Callable[[], Awaitable[None]]]]:
    """Yields a store with one thread, and a function that occupies the thread until the end of the block."""
    begun, released = threading.Event(), threading.Event()
    calls = []

    async def occupy() -> None:
        calls.append(asyncio.ensure_future(twin.run(lambda _: (begun.set(), released.wait(3 * SOON_S)))))
        await arrives(begun)

    async with fordway.aio.open(at, threads=1) as twin:
        try:
            yield twin, occupy
        finally:
            released.set()
            await asyncio.gather(*calls)


async def cancel_soon(task: asyncio.Task[None], ends: asyncio.Event) -> None:
    """Cancels `task` when it waits at the end of its block."""
    await ends.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(SOON_S):
            await task


def test_a_commit_that_is_cancelled_before_it_has_a_thread_discards_the_object(place: str) -> None:
    async def use(writer: fordway.aio.AsyncWriter, occupy: Callable[[], Awaitable[None]]) -> None:
        async with writer:
            await writer.write(b"content")
            await occupy()
            ends.set()

    async def work() -> None:
        async with busy_store(place) as (twin, occupy):
            writer = await twin.writer(BUCKET, "key")
            await cancel_soon(asyncio.ensure_future(use(writer, occupy)), ends)
            assert writer.closed
        assert [entry.key for entry in fordway.open(place).list(BUCKET)] == []

    ends = asyncio.Event()
    asyncio.run(work())


def test_a_completion_that_is_cancelled_before_it_has_a_thread_aborts_the_upload(silent: str) -> None:
    async def use(upload: fordway.aio.AsyncUpload, occupy: Callable[[], Awaitable[None]]) -> None:
        async with upload:
            await upload.put_part(1, b"part")
            await occupy()
            ends.set()

    async def work(at: str) -> None:
        async with busy_store(at) as (twin, occupy):
            upload = await twin.upload(BUCKET, "key")
            await cancel_soon(asyncio.ensure_future(use(upload, occupy)), ends)

    ends = asyncio.Event()
    with slow_uploads(0, 0) as (at, _, aborted):
        asyncio.run(work(at))
        assert len(aborted) == 1


def test_the_end_of_a_block_can_be_left_if_the_server_is_silent(silent: str) -> None:
    async def work() -> None:
        async with (
            fordway.aio.open(silent) as twin,
            asyncio.timeout(0.2),
            twin.resume_upload(BUCKET, "key", "id") as upload,
        ):
            await upload.put_part(1, b"part")

    begin = time.monotonic()
    with pytest.raises((TimeoutError, errors.FordwayError)):
        asyncio.run(asyncio.wait_for(work(), 1))
    assert time.monotonic() - begin < 4 * SOON_S


def test_a_part_can_be_sent_again_at_once_after_its_call_was_cancelled(silent: str) -> None:
    first = threading.Event()

    def respond(_: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if "partNumber" in path and not first.is_set():
            first.set()
            time.sleep(0.5)
        content = b"" if "partNumber" in path else COMPLETED if body else PARTS
        return 200, {"ETag": '"a"'}, content

    async def work(at: str) -> None:
        async with fordway.aio.open(at) as twin:
            upload = twin.resume_upload(BUCKET, "key", "id")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await upload.put_part(1, b"part")
            await upload.put_part(1, b"part")
            await asyncio.sleep(0.3)
            await upload.complete()

    with scripted(respond) as at:
        asyncio.run(work(at))


class HeldStore:
    """A store whose reads do not return until they are released."""

    def __init__(self, store: fordway.Store) -> None:
        self.store, self.head = store, store.head
        self.arrived, self.released = threading.Event(), threading.Event()

    def hold(self) -> None:
        self.arrived.set()
        self.released.wait(3 * SOON_S)

    def get(self, *args: Any, **options: Any) -> bytes:  # noqa: ANN401
        data = self.store.get(*args, **options)
        self.hold()
        return data

    def get_into(self, *args: Any, **options: Any) -> int:  # noqa: ANN401
        read = self.store.get_into(*args, **options)
        self.hold()
        return read


def test_a_cancelled_read_does_not_move_the_position(place: str) -> None:
    async def work() -> None:
        async with fordway.aio.open(place) as twin:
            await twin.put(BUCKET, "key", b"0123456789")
            held = HeldStore(twin.store)
            reader = fordway.aio.AsyncReader(twin._threads, ObjectReader(held, BUCKET, "key"))
            assert reader.seek(1) == 1
            task = asyncio.ensure_future(reader.read(3))
            await arrives(held.arrived)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            held.released.set()
            await twin._threads.all_ended()
            assert await reader.read(3) == b"123" and reader.tell() == 4
            assert await reader.read(0) == b"" and await reader.read() == b"456789"
            assert await reader.read(3) == b"" and reader.tell() == 10

    asyncio.run(work())


def test_a_cancelled_call_no_longer_writes_into_the_buffer(silent: str) -> None:
    async def work() -> None:
        async with fordway.aio.open(silent) as twin:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await twin.get_into(BUCKET, "key", bytearray(10))
            assert not twin._threads._calls

    asyncio.run(work())


def test_an_invalid_argument_changes_neither_a_stream_nor_a_writer(place: str) -> None:
    async def work() -> None:
        async with fordway.aio.open(place) as twin:
            async with await twin.writer(BUCKET, "key") as writer:
                with pytest.raises(TypeError):
                    await writer.write("text")
                assert not writer.closed
                await writer.write(b"content")
            stream, _ = await twin.stream(BUCKET, "key")
            with pytest.raises(TypeError):
                await stream.read("all")
            assert not stream.closed and await stream.read() == b"content"

    asyncio.run(work())


def test_a_write_after_the_commit_is_refused_and_changes_nothing(place: str) -> None:
    async def work() -> None:
        async with fordway.aio.open(place) as twin:
            async with await twin.writer(BUCKET, "key") as writer:
                await writer.write(b"content")
                await writer.commit()
                with pytest.raises(errors.InvalidArgumentError, match="committed"):
                    await writer.write(b"more")
            assert await twin.get(BUCKET, "key") == b"content"

    asyncio.run(work())


def test_the_end_of_a_block_raises_if_a_write_failed(silent: str) -> None:
    def respond(method: str, _: str, __: bytes) -> tuple[int, dict[str, str], bytes]:
        return (200, {}, STARTED) if method == "POST" else FAILED

    async def work(at: str) -> None:
        async with fordway.aio.open(at, retries=0) as twin:
            with pytest.raises(errors.InvalidArgumentError, match="a write failed"):
                async with await twin.writer(BUCKET, "key") as writer:
                    with contextlib.suppress(errors.FordwayError):
                        for _ in range(3):
                            await writer.write(bytes(8 << 20))
                    assert writer.closed

    with scripted(respond) as at:
        asyncio.run(work(at))


def test_a_clean_up_after_the_end_of_the_store_does_not_block_the_loop(place: str) -> None:
    async def work() -> None:
        twin = fordway.aio.open(place)
        writer = await twin.writer(BUCKET, "key")
        await twin.close()
        assert await twin._threads.finish(threading.get_ident) != threading.get_ident()
        await writer.discard()
        assert writer.closed

    asyncio.run(work())


def test_a_cancelled_close_closes_the_store(place: str) -> None:
    goes_on = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b"first"
        goes_on.wait(60)

    async def work() -> None:
        twin = fordway.aio.open(place)
        put = asyncio.ensure_future(twin.put(BUCKET, "key", pieces()))
        await asyncio.sleep(0.1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await twin.close()
        assert twin.closed
        with pytest.raises(errors.InvalidArgumentError, match="the store is closed"):
            await twin.get(BUCKET, "key")
        goes_on.set()
        with pytest.raises(errors.CallInterruptedError):
            await put
        await twin.close()

    asyncio.run(work())


def test_the_end_of_a_block_needs_no_thread_of_the_program(place: str) -> None:
    released = threading.Event()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = asyncio.ensure_future(asyncio.to_thread(released.wait))
        await asyncio.sleep(0.05)
        try:
            async with asyncio.timeout(SOON_S), fordway.aio.open(place) as twin:
                await twin.put(BUCKET, "key", b"")
            await asyncio.gather(twin.close(), twin.close())
        finally:
            released.set()
            await busy

    asyncio.run(work())


def test_a_call_sees_the_context_variables_of_its_caller(place: str) -> None:
    variable = contextvars.ContextVar("variable", default="default")

    async def work() -> None:
        async with fordway.aio.open(place) as twin:
            variable.set("caller")
            assert await twin.run(lambda _: variable.get()) == "caller"

    asyncio.run(work())


def test_a_pickled_store_is_opened_anew(place: str) -> None:
    twin = pickle.loads(pickle.dumps(fordway.aio.open(place, threads=3)))
    asyncio.run(twin.put(BUCKET, "key", b"content"))
    assert (twin._threads.count, twin.lane, twin.closed) == (3, "embedded", False)
    asyncio.run(twin.close())
    assert twin.closed


def test_calls_have_the_signatures_of_the_store() -> None:
    for name in ("get_into", "get", "list_page", "upload", "writer"):
        call = getattr(fordway.aio.AsyncStore, name)
        assert str(inspect.signature(call)) == str(inspect.signature(getattr(fordway.Store, name)))
        assert call.__qualname__ == f"AsyncStore.{name}" and inspect.iscoroutinefunction(call)
        assert call.__doc__ == getattr(fordway.Store, name).__doc__
