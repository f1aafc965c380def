"""Tests what is special about `fordway.aio`: cancelled calls, the ends of blocks, forks, and signatures."""

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
from typing import TYPE_CHECKING

import pytest
from gateways import KEYS
from scripted_server import scripted

import fordway
import fordway.aio
from fordway import errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

BUCKET = "bucket"
SOON_S = 20
"""More than any cancelled call needs on a busy machine, and less than the time after which a call gives up
waiting for a silent server (150 s).
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


@contextlib.contextmanager
def slow_uploads(begin_s: float, abort_s: float) -> Iterator[tuple[str, list[str]]]:
    """Yields the endpoint of a server, and a list to which it adds each upload that it aborts."""
    aborted: list[str] = []

    def respond(method: str, path: str, _: bytes) -> tuple[int, dict[str, str], bytes]:
        if method == "POST":
            time.sleep(begin_s)
            return 200, {}, STARTED
        if method == "DELETE":
            time.sleep(abort_s)
            aborted.append(path)
            return 204, {}, b""
        return 200, {"ETag": '"a"'}, b""

    with scripted(respond) as at:
        yield at, aborted


def test_an_upload_that_nobody_knows_is_aborted(silent: str) -> None:
    async def work(at: str, timeout_s: float) -> None:
        async with fordway.aio.open(at) as twin:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await twin.upload(BUCKET, "key")
                    timed_out.append(False)
                    return
            timed_out.append(True)

    with slow_uploads(0.2, 0) as (at, aborted):
        timed_out: list[bool] = []
        for timeout_s in (0.05, 0.1, 0.195, 0.2, 0.203, 0.206, 0.21, 0.25):
            asyncio.run(work(at, timeout_s))
        assert timed_out[0] and len(aborted) == sum(timed_out)
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

    with slow_uploads(0, 0.5) as (at, aborted):
        asyncio.run(work(at, aborted))


def test_the_end_of_a_block_goes_on_while_the_loop_shuts_down(silent: str) -> None:
    async def work(at: str) -> None:
        twin, sent = fordway.aio.open(at), asyncio.Event()
        task = asyncio.ensure_future(use_upload(twin, sent))
        await sent.wait()
        task.cancel()
        # The task waits at the end of its block when `asyncio.run` cancels it again.
        await asyncio.sleep(0)

    with slow_uploads(0, 0.5) as (at, aborted):
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
        content = b"<CompleteMultipartUploadResult><ETag>a</ETag></CompleteMultipartUploadResult>"
        parts = b"<ListPartsResult><Part><PartNumber>1</PartNumber><ETag>a</ETag><Size>4</Size>" + (
            b"<LastModified>2026-01-01T00:00:00.000Z</LastModified></Part></ListPartsResult>"
        )
        return 200, {"ETag": '"a"'}, b"" if "partNumber" in path else parts if not body else content

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
