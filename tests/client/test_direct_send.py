"""The direct path: the calling thread sends a record itself, with linger 0 and nothing in flight."""

from __future__ import annotations

import signal
import socket
import threading
from types import FrameType
from typing import Any

import pytest

from stratalog.client.producer import Delivery, Producer
from stratalog.net._pipeline import Pipeline
from stratalog.protocol.api_keys import ApiKey
from tests.client.conftest import NewTopic
from tests.client.read_back import read_partition
from tests.clients.waiting import wait_until

SECONDS = 60.0


class WatchedProducer(Producer):
    """Counts how often its I/O thread looks for batches to send, and knows whether it has anything else to do."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        super().__init__(bootstrap, linger_ms=0, **settings)
        self.drains = 0
        self._blocks = False
        drain = self._sender.drain
        selector = self._io.loop._selector  # type: ignore[attr-defined]
        select = selector.select

        def count_drain() -> None:
            self.drains += 1
            drain()

        def watch_select(timeout: float | None = None) -> Any:
            # With a short timeout, or 0, the thread returns by itself: a callback or a timer is due.
            self._blocks = timeout is None or timeout > 1
            try:
                return select(timeout)
            finally:
                self._blocks = False

        self._sender.drain = count_drain  # type: ignore[method-assign]
        selector.select = watch_select

    def wait_until_idle(self) -> None:
        """Until the I/O thread has nothing to do and waits for events."""
        direct = self._accumulator.direct
        assert direct is not None
        wait_until(lambda: self._blocks and direct.io_thread_waits, "the I/O thread to wait")

    def send_when_idle(self, topic: str, value: bytes) -> Delivery:
        self.wait_until_idle()
        return self.send(topic, value, partition=0)


def test_a_record_that_is_alone_does_not_wake_the_io_thread(bootstrap: str, topic: str) -> None:
    with WatchedProducer(bootstrap) as producer:
        producer.send(topic, b"first").result(SECONDS)  # connects
        producer.send(topic, b"second").result(SECONDS)
        producer.wait_until_idle()
        before = producer.drains
        sent = [producer.send_when_idle(topic, b"%d" % number).result(SECONDS) for number in range(20)]
        assert producer.drains == before, "the I/O thread was woken for a record that the caller could send"
    first = sent[0].offset
    assert [record.offset for record in sent] == list(range(first, first + 20))
    assert [record.value for record in read_partition(bootstrap, topic, 0)][first:] == [b"%d" % n for n in range(20)]


@pytest.mark.parametrize(
    "settings",
    [{"compression_type": "gzip"}, {"acks": 0}, {"linger_ms": 1}, {"transactional_id": "t"}],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_need_the_io_thread_disable_the_direct_path(settings: dict[str, Any]) -> None:
    with Producer("127.0.0.1:1", **({"linger_ms": 0} | settings)) as producer:
        assert producer._accumulator.direct is None


def test_threads_that_wait_for_each_record_keep_its_order(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    with Producer(bootstrap, linger_ms=0) as producer:

        def send(name: int) -> None:
            for number in range(100):
                producer.send(topic, b"%d %d" % (name, number), partition=name % 2).result(SECONDS)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for partition in range(2):
        stored = [(record.value or b"").split() for record in read_partition(bootstrap, topic, partition)]
        for name in (partition, partition + 2):
            assert [int(number) for thread_name, number in stored if int(thread_name) == name] == list(range(100))


class InterruptedSendError(Exception):
    pass


def test_interrupted_sends_lose_and_duplicate_no_record(bootstrap: str, topic: str) -> None:
    """A signal may arrive at any line of the calling thread, even while it sends."""

    armed: list[bool] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if armed:
            armed.clear()
            raise InterruptedSendError

    acknowledged: list[bytes] = []
    interrupts = 0
    with Producer(bootstrap, linger_ms=0) as producer:
        producer.send(topic, b"first", partition=0).result(SECONDS)
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for number in range(3000):
                value = b"%d" % number
                try:
                    armed.append(True)
                    signal.setitimer(signal.ITIMER_REAL, 0.00002 + number % 40 * 0.00001)
                    producer.send(topic, value, partition=0).result(SECONDS)
                    acknowledged.append(value)
                    armed.clear()
                except InterruptedSendError:
                    interrupts += 1
        finally:
            armed.clear()
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        producer.flush(SECONDS)
        assert producer._accumulator.used == 0
    stored = [record.value or b"" for record in read_partition(bootstrap, topic, 0)][1:]
    assert interrupts
    assert len(set(stored)) == len(stored)
    assert [value for value in stored if value in set(acknowledged)] == acknowledged


def pipeline(sock: socket.socket, correlation_id: int = 0) -> Pipeline:
    made = Pipeline(sock.fileno(), b"\0\2id", correlation_id)
    made.timer_at = 5.0
    return made


def post(to: Pipeline, body: bytes) -> bool:
    return to.send_now(ApiKey.PRODUCE, 9, True, body, 1.0, 6.0, print)


def test_a_direct_request_is_framed_and_recorded() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        to = pipeline(ours, 2**31 - 1)
        assert post(to, b"body")
        frame = bytes.fromhex("00000011 0000 0009 7fffffff 0002 6964 00") + b"body"
        assert theirs.recv(100) == frame
        assert to.number() == 0
        [noted] = to.in_flight
        assert (noted.correlation_id, noted.flexible, noted.deadline) == (2**31 - 1, True, 6.0)
        assert noted.what == "PRODUCE v9"
        assert to.last_used == 1.0


def test_bytes_that_the_socket_does_not_take_are_left_to_the_event_loop() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                ours.send(bytes(4096))
        to = pipeline(ours)
        assert not post(to, b"body")
        assert bytes(to.out[0]).endswith(b"body")
        to = pipeline(ours)
    assert not post(to, b"body")  # closed: the event loop notices when it writes
    assert len(to.out[0]) == 21


def test_a_connection_with_pending_work_is_not_idle() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        to = pipeline(ours)
        assert to.is_idle(6.0)
        to.timer_at = 7.0
        assert not to.is_idle(6.0), "its timer is set too late"
        to.timer_at = 5.0
        to.out.append(memoryview(b"unsent"))
        assert not to.is_idle(6.0)
        to.out.clear()
        to.expect(True, 6.0, print, ApiKey.PRODUCE, 9)
        assert not to.is_idle(6.0)
        assert len(to.close()) == 1
        assert not to.is_idle(6.0), "it is closed"
