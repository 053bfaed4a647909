"""A client's background thread: every submitted coroutine gets an outcome, and the thread stops when it should."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import pytest

from stratalog.client.errors import ClientClosedError, RequestTimeoutError
from stratalog.client.io_thread import IoThread

SECONDS = 20.0


@pytest.fixture
def io() -> Iterator[IoThread]:
    thread = IoThread("stratalog-test")
    yield thread
    thread.close(timeout=SECONDS)


async def forever() -> None:
    await asyncio.Event().wait()


async def name_of_thread() -> str:
    return threading.current_thread().name


def test_coroutines_run_in_the_named_thread(io: IoThread) -> None:
    assert io.run(name_of_thread()) == "stratalog-test"


def test_an_exception_of_a_coroutine_reaches_the_caller(io: IoThread) -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        io.run(fails())


def test_a_coroutines_own_timeout_is_not_mistaken_for_the_calls(io: IoThread) -> None:
    async def fails() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        io.run(fails(), timeout=SECONDS)


def test_a_call_past_its_timeout_is_cancelled(io: IoThread) -> None:
    cancelled = threading.Event()

    async def waits() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(RequestTimeoutError, match=r"within 0\.05 s"):
        io.run(waits(), timeout=0.05)
    assert cancelled.wait(SECONDS)


def test_a_blocking_call_in_the_thread_itself_is_refused(io: IoThread) -> None:
    async def calls() -> str:
        with pytest.raises(RuntimeError, match="would never return"):
            io.run(name_of_thread())
        return "went on"

    assert io.run(calls(), timeout=SECONDS) == "went on"


def test_an_interrupt_cancels_the_coroutine(io: IoThread) -> None:
    cancelled = threading.Event()

    async def waits() -> None:
        main = threading.main_thread().ident or 0
        io.loop.call_later(0.05, lambda: signal.pthread_kill(main, signal.SIGUSR1))
        try:
            await forever()
        finally:
            cancelled.set()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            io.run(waits())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert cancelled.wait(SECONDS)
    assert io.run(name_of_thread()) == "stratalog-test"


def test_close_ends_all_waiting_calls(io: IoThread) -> None:
    futures = [io.submit(forever()) for _ in range(20)]
    errors: list[BaseException] = []

    def call() -> None:
        try:
            io.run(forever())
        except BaseException as error:
            errors.append(error)

    callers = [threading.Thread(target=call) for _ in range(5)]
    for caller in callers:
        caller.start()
    io.run(asyncio.sleep(0.05))
    io.close(timeout=SECONDS)
    for caller in callers:
        caller.join(SECONDS)
    assert [type(error) for error in errors] == [ClientClosedError] * 5
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(SECONDS)


def test_coroutines_submitted_during_close_get_an_outcome() -> None:
    for _ in range(20):
        io = IoThread("stratalog-test")
        futures: list[Future[None]] = []
        started = threading.Event()

        def hand_in(
            io: IoThread = io, futures: list[Future[None]] = futures, started: threading.Event = started
        ) -> None:
            try:
                while True:
                    futures.append(io.submit(forever()))
                    started.set()
            except ClientClosedError:
                pass

        caller = threading.Thread(target=hand_in)
        caller.start()
        started.wait(SECONDS)
        io.close(timeout=SECONDS)
        caller.join(SECONDS)
        assert futures
        for future in futures:
            with pytest.raises(CancelledError):
                future.result(SECONDS)


def test_the_last_coroutine_runs_before_the_thread_stops(io: IoThread) -> None:
    done = threading.Event()

    async def last() -> None:
        await asyncio.sleep(0.01)
        done.set()

    io.close(last(), timeout=SECONDS)
    assert done.is_set()


def test_a_last_coroutine_past_its_timeout_is_cancelled(io: IoThread) -> None:
    io.close(forever(), timeout=0.05)
    with pytest.raises(ClientClosedError, match="stratalog-test is closed; create a new one"):
        io.check_usable()


def test_a_closed_thread_refuses_calls_except_close(io: IoThread) -> None:
    io.close()
    io.close(forever())
    with pytest.raises(ClientClosedError):
        io.run(forever())
    with pytest.raises(ClientClosedError):
        io.submit(forever())
    with pytest.raises(ClientClosedError):
        io.call_soon(print)


def test_close_in_the_thread_itself_does_not_hang(io: IoThread) -> None:
    io.call_soon(io.close)
    io._thread.join(SECONDS)
    assert not io._thread.is_alive()


def test_callbacks_run_in_the_order_of_submission(io: IoThread) -> None:
    seen: list[int] = []
    for number in range(1000):
        io.call_soon(seen.append, number)
    io.run(name_of_thread())
    assert seen == list(range(1000))


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    start = "import asyncio, os, sys, threading\nfrom concurrent.futures import wait\n"
    start += "from stratalog.client.io_thread import IoThread\n"
    start += "from stratalog.client.errors import *\n"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", start + script], capture_output=True, text=True, timeout=60
    )


_FORK = """
io = IoThread("stratalog-producer-1")
async def fine(): return "fine"
io.submit(asyncio.sleep(1000))
child = os.fork()
if child == 0:
    for use in (lambda: io.run(fine()), lambda: io.call_soon(print), io.check_usable):
        try:
            use()
        except ForkedClientError as error:
            assert "stratalog-producer-1 was created before a fork" in str(error), error
        else:
            os._exit(1)
    io.close()
    other = IoThread("stratalog-producer-2")
    assert other.run(fine()) == "fine"
    sys.exit(0)  # as a child that ends by itself: atexit and all
assert os.waitpid(child, 0)[1] == 0
assert io.run(fine()) == "fine"
io.close()
print("parent is", "fine")
"""


def test_a_forked_child_refuses_calls_and_the_parent_continues() -> None:
    done = run_script(_FORK)
    assert (done.returncode, done.stdout, done.stderr) == (0, "parent is fine\n", "")


_FORK_WHILE_BUSY = """
io = IoThread("stratalog-producer-1")
async def fine(): return "fine"
stop = threading.Event()
def use():
    while not stop.is_set():
        io.run(fine())
users = [threading.Thread(target=use, daemon=True) for _ in range(4)]
for user in users: user.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        try:
            io.run(fine())
        except ForkedClientError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for user in users: user.join()
"""


def test_a_fork_during_calls_of_other_threads_does_not_hang() -> None:
    done = run_script(_FORK_WHILE_BUSY)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(3)",
        "raise SystemExit(3)",
        "threading.Thread(target=wait, args=([io.submit(asyncio.sleep(1000))],), daemon=True).start()",
        "io.submit(asyncio.sleep(1000))",
        "io.at_exit(lambda: print('told'))",
    ],
)
def test_the_interpreter_exits_silently_without_a_close(end: str) -> None:
    done = run_script(f"io = IoThread('stratalog-test')\nio.call_soon(lambda: None)\n{end}\n")
    assert done.stderr == ""
    assert done.returncode == (3 if "3" in end else 0)
    assert done.stdout == ("told\n" if "told" in end else "")
