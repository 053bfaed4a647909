from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from stratalog.testing import BrokerFailedError, BrokerProcess
from tests.clients.waiting import wait_until
from tests.testing.wire import API_VERSIONS, METADATA, Wire

NOW_MS = time.time_ns() // 1_000_000
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "broker") as running:
        yield running


def send(broker: BrokerProcess, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def bounds(broker: BrokerProcess, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        return low, high
    finally:
        consumer.close()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")


# Life


def test_temporary_directory_is_removed_with_the_broker() -> None:
    with BrokerProcess() as broker:
        directory, pid = broker.data_dir.parent, broker.pid
        assert broker.data_dir.is_dir()
    assert not directory.exists()
    assert not is_alive(pid)


def test_killed_broker_restarts_on_its_port_with_its_data(broker: BrokerProcess) -> None:
    broker.create_topic("orders")
    send(broker, "orders", "a", "b")
    address = broker.bootstrap_servers
    broker.kill()
    assert not broker.is_running
    broker.restart()
    assert broker.bootstrap_servers == address
    assert bounds(broker, "orders") == (0, 2)


def test_stopped_broker_has_flushed_everything(broker: BrokerProcess) -> None:
    broker.create_topic("orders")
    broker.stop()
    assert (broker.data_dir / ".kafka_cleanshutdown").exists()


def test_port_of_a_stopped_broker_refuses_and_stays_reserved(broker: BrokerProcess) -> None:
    broker.kill()
    for _ in range(50):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((broker.host, broker.port), 5)


def test_paused_broker_keeps_connections_and_answers_later(broker: BrokerProcess) -> None:
    with Wire(broker.port) as wire:
        broker.pause()
        wire.send(API_VERSIONS)
        assert wire.is_silent()
        broker.resume()
        assert wire.receive() == 1


def test_paused_broker_can_be_stopped_killed_and_restarted(broker: BrokerProcess) -> None:
    broker.pause()
    broker.restart()
    broker.pause()
    broker.kill()
    broker.start()
    broker.pause()
    broker.stop()
    assert not broker.is_running


def test_command_to_a_paused_broker_is_refused_and_does_not_hang(broker: BrokerProcess) -> None:
    broker.pause()
    with pytest.raises(BrokerFailedError, match=r"resume\(\)"):
        broker.create_topic("orders")


def test_command_to_a_stopped_broker_is_an_error_that_says_so(broker: BrokerProcess) -> None:
    broker.kill()
    with pytest.raises(BrokerFailedError, match=r"start\(\)"):
        broker.heal()


def test_starting_twice_is_refused(broker: BrokerProcess) -> None:
    with pytest.raises(BrokerFailedError, match=r"restart\(\)"):
        broker.start()


def test_unknown_setting_is_refused_with_a_similar_one(tmp_path: Path) -> None:
    with (
        pytest.raises(BrokerFailedError, match=r"did you mean num\.partitions"),
        BrokerProcess(tmp_path, {"num.partition": 3}),
    ):
        pass


def test_settings_reach_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"auto.create.topics.enable": False}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "message.timeout.ms": 1000})
        errors: list[object] = []
        producer.produce("missing", b"x", on_delivery=lambda error, _: errors.append(error))
        producer.flush(30)
        assert errors[0] is not None


def test_existing_topic_is_refused(broker: BrokerProcess) -> None:
    broker.create_topic("orders", partitions=3, config={"retention.ms": 1000})
    with pytest.raises(BrokerFailedError, match="orders"):
        broker.create_topic("orders")
    broker.delete_topic("orders")
    with pytest.raises(BrokerFailedError, match="orders"):
        broker.delete_topic("orders")
    broker.delete_topic("orders", if_exists=True)


def test_log_can_be_read_and_outlives_restarts(broker: BrokerProcess) -> None:
    with Wire(broker.port) as wire:
        wire.send(999)
        assert wire.receive() is None
    wait_until(lambda: "API key 999" in broker.logs, "a line in the log")
    broker.restart()
    assert "API key 999" in broker.logs


# Faults


def test_delayed_response_arrives(broker: BrokerProcess) -> None:
    with Wire(broker.port) as wire, broker.delay(0.5) as fault:
        wire.send(API_VERSIONS)
        assert wire.is_silent(0.1)
        assert wire.receive() == 1
        assert fault.met == 1


def test_delayed_responses_arrive_when_the_fault_ends(broker: BrokerProcess) -> None:
    with Wire(broker.port) as wire:
        with broker.delay(3600):
            wire.send(API_VERSIONS)
            assert wire.is_silent()
        assert wire.receive() == 1


def test_dropped_response_silences_only_its_connection(broker: BrokerProcess) -> None:
    with Wire(broker.port) as wire, Wire(broker.port) as other:
        fault = broker.drop(count=1)
        wire.send(API_VERSIONS)
        wait_until(lambda: fault.met == 1, "the drop")
        assert other.ask() == 1
        wire.send(API_VERSIONS)
        assert wire.is_silent()
        fault.end()
        assert wire.receive() is None


def test_fault_affects_only_the_named_api(broker: BrokerProcess) -> None:
    with Wire(broker.port) as wire, broker.disconnect(api="Metadata") as fault:
        assert wire.ask(API_VERSIONS) == 1
        assert wire.ask(METADATA) is None
        assert fault.met == 1


def test_request_of_a_dropped_response_was_handled(broker: BrokerProcess) -> None:
    broker.create_topic("orders")
    with broker.disconnect(api="Produce", count=1) as fault:
        send(broker, "orders", "once")
    assert fault.met == 1
    # librdkafka sent the record again, because it is not idempotent by default.
    assert bounds(broker, "orders") == (0, 2)


def test_last_fault_wins_and_heal_ends_all_faults(broker: BrokerProcess) -> None:
    with Wire(broker.port) as wire, Wire(broker.port) as other:
        first, second = broker.drop(), broker.disconnect()
        assert wire.ask() is None
        second.end()
        other.send(API_VERSIONS)
        assert other.is_silent()
        broker.heal()
        assert (first.met, second.met) == (1, 1)
        assert other.receive() is None
    with Wire(broker.port) as wire:
        assert wire.ask() == 1


def test_stop_does_not_wait_for_dropped_responses(broker: BrokerProcess) -> None:
    with Wire(broker.port) as wire:
        fault = broker.drop()
        wire.send(API_VERSIONS)
        wait_until(lambda: fault.met == 1, "the drop")
        broker.restart()
        assert wire.receive() is None
        assert fault.met == 0


@pytest.mark.parametrize("wrong", [{"api": "Nonsense"}, {"count": 0}])
def test_fault_with_a_wrong_argument_is_refused(broker: BrokerProcess, wrong: dict[str, object]) -> None:
    with pytest.raises((BrokerFailedError, ValueError), match=r"api is|count is"):
        broker.drop(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seconds is -1"):
        broker.delay(-1)


# Time


def test_records_are_deleted_when_the_clock_passes_their_retention(broker: BrokerProcess) -> None:
    broker.create_topic("orders", config={"retention.ms": DAY_MS})
    send(broker, "orders", "a", "b")
    broker.clock.advance(hours=23)
    assert bounds(broker, "orders") == (0, 2)
    broker.clock.advance(hours=2)
    assert bounds(broker, "orders") == (2, 2)


def test_committed_offsets_expire_when_the_clock_moves(broker: BrokerProcess) -> None:
    broker.create_topic("orders", config={"retention.ms": -1})
    send(broker, "orders", "a", "b")
    partition = TopicPartition("orders", 0)
    no_offset = -1001
    for days, expected in ((0, 2), (6, 2), (2, no_offset)):  # offsets.retention.minutes is a week
        broker.clock.advance(days=days)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        if not days:
            consumer.commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)
        assert consumer.committed([partition], 30)[0].offset == expected
        consumer.close()


def test_clock_continues_after_a_restart(broker: BrokerProcess) -> None:
    broker.clock.advance(days=3)
    broker.kill()
    broker.restart()
    assert broker.clock.now_ms >= NOW_MS + 3 * DAY_MS


def test_stopped_clock_moves_only_by_advance(broker: BrokerProcess) -> None:
    broker.clock.stop()
    before = broker.clock.now_ms
    time.sleep(0.01)
    assert broker.clock.now_ms == before
    broker.clock.advance(seconds=2)
    assert broker.clock.now_ms == before + 2000
    broker.clock.go()
    wait_until(lambda: broker.clock.now_ms > before + 2000, "time passing")
    broker.clock.reset()
    assert broker.clock.now_ms < before + 60_000


def test_clock_does_not_go_back(broker: BrokerProcess) -> None:
    with pytest.raises(ValueError, match=r"reset\(\)"):
        broker.clock.advance(seconds=-1)


def test_consumer_stays_in_its_group_while_weeks_pass(broker: BrokerProcess) -> None:
    broker.create_topic("orders", config={"retention.ms": -1})
    send(broker, "orders", "a")
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    rebalances: list[object] = []
    consumer.subscribe(["orders"], on_assign=lambda _, partitions: rebalances.append(partitions))
    try:
        first = consumer.poll(30)
        assert first is not None
        assert first.value() == b"a"
        broker.clock.advance(days=6)
        send(broker, "orders", "b")
        second = consumer.poll(30)
        assert second is not None
        assert second.value() == b"b"
        assert len(rebalances) == 1
    finally:
        consumer.close()


# The end of the owner

STARTS = """
import os, sys
from stratalog.testing import BrokerProcess
broker = BrokerProcess(sys.argv[1]).start()
{more}
print(broker.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "more",
    [
        "",
        "broker.pause()",
        "if os.fork() == 0: os.close(1); import time; time.sleep(20); os._exit(0)",  # it inherits the pipe
    ],
    ids=["running", "paused", "with a fork"],
)
def test_broker_dies_with_a_process_that_is_killed(tmp_path: Path, more: str) -> None:
    command = [sys.executable, "-c", STARTS.format(more=more), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert is_alive(pid)
        owner.kill()
        owner.wait()
        wait_until(lambda: not is_alive(pid), "the broker's end")


def test_ctrl_c_does_not_reach_the_broker(broker: BrokerProcess) -> None:
    assert os.getsid(broker.pid) == broker.pid != os.getsid(0)


def test_broker_survives_the_thread_that_started_it(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    thread = threading.Thread(target=broker.start)
    thread.start()
    thread.join()
    try:
        with Wire(broker.port) as wire:
            assert wire.ask() == 1
        os.kill(broker.pid, signal.SIGTERM)
        wait_until(lambda: not broker.is_running, "the broker's end")
    finally:
        broker.close()
