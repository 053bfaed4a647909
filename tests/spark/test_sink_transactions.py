"""The exactly-once protocol of the sink, without Spark: kills at every point, and late drivers and tasks.

The broker is a process; drivers and tasks are objects. An object that "dies" is abandoned with its open transactions.
test_exactly_once.py kills real processes of Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from stratalog.client.admin import Admin
from stratalog.client.errors import BrokerError, ClientError, UnsupportedVersionError
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import OffsetAndMetadata
from stratalog.client.prepared_transaction import PreparedTransaction
from stratalog.spark import sink_transactions
from stratalog.spark.sink_ids import SinkIds
from stratalog.spark.sink_transactions import (
    SinkError,
    StreamSink,
    abort_batch,
    commit_batch,
    next_batch,
    resolved,
)
from stratalog.spark.task_writer import Attempt, TaskTransactions, write_in_transactions
from stratalog.spark.write_options import Delivery, WriteOptions, parse
from stratalog.testing import BrokerProcess
from tests.spark.committed import nothing_is_open, values

PARTITIONS = 2
TASKS = 2
QUERY = "query-1"
POINTS = ("before progress", "progress prepared", "before the decision", "decided", "before cleaning up")


class DiedError(Exception):
    """Stands for the death of a driver or a task."""


class DyingSink(StreamSink):
    """A sink that calls `reached` at each of POINTS."""

    reached: Callable[[str], None] = staticmethod(lambda point: None)

    def _prepare_progress(self, batch_id: int) -> PreparedTransaction:
        self.reached("before progress")
        own = super()._prepare_progress(batch_id)
        self.reached("progress prepared")
        return own

    def _decide(self, prepared: Sequence[PreparedTransaction]) -> None:
        self.reached("before the decision")
        super()._decide(prepared)
        self.reached("decided")

    def _clean_up(self) -> None:
        self.reached("before cleaning up")
        super()._clean_up()


class Query:
    """Uses a sink like Spark: batches of numbered rows. A repeated batch has the same rows."""

    def __init__(self, broker: BrokerProcess, topic: str, sink_id: str) -> None:
        self.broker = broker
        self.topic = topic
        self.ids = SinkIds(sink_id)
        self.options = resolved(
            parse({"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic, "sinkId": sink_id})
        )
        self.dead: list[StreamSink | TaskTransactions] = []
        self.sink: DyingSink | None = None

    def rows(self, batch: int, task: int) -> list[str]:
        return [f"{batch}-{task}-{number}" for number in range(3)]

    def batch_of(self, batch: int, task: int) -> pa.RecordBatch:
        return pa.record_batch({"value": self.rows(batch, task)})

    def task(self, batch: int, task: int, number: int = 0) -> tuple[PreparedTransaction, ...]:
        attempt = Attempt(self.ids, task, number)
        return write_in_transactions([self.batch_of(batch, task)], self.options, attempt)[1]

    def dying_task(self, batch: int, task: int, number: int = 0) -> None:
        """Send all rows without preparing the transaction."""
        transactions = TaskTransactions(self.options, Attempt(self.ids, task, number))
        self.dead.append(transactions)
        transactions.send(self.batch_of(batch, task))
        assert transactions._producer is not None
        transactions._producer.flush()

    def tasks(self, batch: int) -> list[PreparedTransaction]:
        return [each for task in range(TASKS) for each in self.task(batch, task)]

    def driver(self) -> DyingSink:
        if self.sink is None:
            self.sink = DyingSink(self.options, self.ids, QUERY)
        return self.sink

    def die(self) -> None:
        if self.sink is not None:
            self.dead.append(self.sink)
            self.sink = None

    def run(self, batch: int) -> None:
        self.driver().commit(batch, self.tasks(batch))

    def expected(self, batches: int) -> list[str]:
        return sorted(row for batch in range(batches) for task in range(TASKS) for row in self.rows(batch, task))

    def check(self, batches: int) -> None:
        """Check that each row is there once, and that no transaction is open."""
        servers = self.broker.bootstrap_servers
        assert values(servers, self.topic, PARTITIONS) == self.expected(batches)
        assert nothing_is_open(servers, self.topic, PARTITIONS)
        with Admin(servers) as admin:
            assert admin.prepared_transactions(self.ids.own) == []
            assert next_batch(admin, self.ids, QUERY) == batches

    def close(self) -> None:
        self.die()
        for each in self.dead:
            each.close()


@pytest.fixture
def query(request: pytest.FixtureRequest, stratalog_broker: BrokerProcess, stratalog_topic: str) -> Iterator[Query]:
    query = Query(stratalog_broker, stratalog_topic, stratalog_topic)
    yield query
    query.close()


pytestmark = pytest.mark.stratalog_topic(PARTITIONS)


class TestDeath:
    @pytest.mark.parametrize("point", POINTS)
    def test_driver_killed_at_any_point_leaves_each_row_once(self, query: Query, point: str) -> None:
        query.run(0)
        query.driver().reached = _die_at(point)
        with pytest.raises(DiedError):
            query.run(1)
        query.die()
        query.run(1)
        query.run(2)
        query.check(3)

    @pytest.mark.parametrize("point", POINTS)
    def test_broker_killed_at_any_point_leaves_each_row_once(self, query: Query, point: str) -> None:
        query.run(0)
        driver = query.driver()
        died: list[str] = []

        def kill(reached: str) -> None:
            if reached == point and not died:
                died.append(reached)
                query.broker.kill()
                query.broker.start()

        driver.reached = kill
        query.run(1)
        query.run(2)
        assert died == [point]
        query.check(3)

    @pytest.mark.parametrize("point", POINTS)
    def test_broker_and_driver_killed_together_leave_each_row_once(self, query: Query, point: str) -> None:
        query.run(0)
        query.driver().reached = _die_at(point)
        with pytest.raises(DiedError):
            query.run(1)
        query.broker.kill()
        query.broker.start()
        query.die()
        query.run(1)
        query.check(2)

    def test_next_attempt_replaces_a_task_killed_before_or_after_it_prepared(self, query: Query) -> None:
        query.dying_task(0, 0)
        query.task(0, 1)  # prepared, but its executor dies before the driver knows it
        query.driver().commit(0, [*query.task(0, 0, 1), *query.task(0, 1, 1)])
        query.check(1)

    def test_next_run_replaces_killed_tasks_and_driver(self, query: Query) -> None:
        query.run(0)
        query.dying_task(1, 0)
        query.task(1, 1)
        query.die()
        query.run(1)
        query.check(2)


def _die_at(point: str) -> Callable[[str], None]:
    def reached(now: str) -> None:
        if now == point:
            raise DiedError(point)

    return reached


class TestTooLate:
    def test_old_driver_can_not_decide_once_another_has_claimed_the_sink(self, query: Query) -> None:
        query.run(0)
        old = query.driver()
        query.die()
        prepared = query.tasks(1)
        query.run(1)  # by a new driver, whose tasks fence those of the old one
        with pytest.raises(ClientError):
            old.commit(1, prepared)
        query.run(2)
        query.check(3)

    def test_old_driver_can_not_decide_while_a_new_one_runs(self, query: Query) -> None:
        """This holds even if all prepared tasks are its own, because the sink's transaction is not."""
        query.run(0)
        old = query.driver()
        query.die()
        query.driver()
        prepared = [*query.task(1, 0, 7), *query.task(1, 1, 7)]
        with pytest.raises(ClientError):
            old.commit(1, prepared)
        query.run(1)
        query.check(2)

    def test_old_drivers_tasks_can_only_delay_the_new_one(self, query: Query) -> None:
        query.run(0)
        prepared = query.tasks(1)
        query.task(1, 0)  # by an executor that seemed dead, with the same id
        with pytest.raises(BrokerError):
            query.driver().commit(1, prepared)
        query.die()
        query.run(1)
        query.check(2)

    def test_superseded_attempt_is_aborted(self, query: Query) -> None:
        winner, _ = query.task(0, 0, 1), query.task(0, 0, 0)
        query.driver().commit(0, [*winner, *query.task(0, 1)])
        query.check(1)

    def test_attempt_that_ends_after_the_commit_is_aborted_by_the_next_commit(self, query: Query) -> None:
        query.run(0)
        query.task(0, 0, 1)
        assert not nothing_is_open(query.broker.bootstrap_servers, query.topic, PARTITIONS)
        query.run(1)
        query.check(2)

    def test_abandoned_attempt_is_aborted_after_its_timeout(
        self, stratalog_new_broker: Callable[..., BrokerProcess]
    ) -> None:
        broker = stratalog_new_broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50})
        broker.create_topic("orders", PARTITIONS)
        query = Query(broker, "orders", "orders")
        query.run(0)
        query.task(1, 0)
        query.dying_task(1, 1)
        broker.clock.advance(days=1)
        while not nothing_is_open(broker.bootstrap_servers, "orders", PARTITIONS):
            broker.clock.advance(seconds=1)
        assert values(broker.bootstrap_servers, "orders", PARTITIONS) == query.expected(1)
        query.close()

    def test_abort_by_an_old_driver_keeps_transactions_of_the_new_one(self, query: Query) -> None:
        old = query.tasks(0)
        new = query.tasks(0)
        with Admin(query.broker.bootstrap_servers) as admin:
            sink_transactions.abort_each(admin, old)
        query.driver().commit(0, new)
        query.check(1)


class TestNote:
    def test_repeated_batch_is_not_written_again(self, query: Query) -> None:
        query.run(0)
        query.run(1)
        query.run(1)
        query.die()
        query.run(0)
        query.check(2)

    def test_sink_of_another_query_is_refused(self, query: Query) -> None:
        query.run(0)
        with pytest.raises(SinkError, match="belongs to query query-1, and this is query query-2"):
            StreamSink(query.options, query.ids, "query-2")

    def test_offset_that_no_sink_wrote_is_refused(self, query: Query) -> None:
        partition = TopicPartition("__transaction_state", 0)
        query.run(0)
        with Admin(query.broker.bootstrap_servers) as admin:
            admin.alter_group_offsets(query.ids.group, {partition: OffsetAndMetadata(5, "mine")}).check()
            with pytest.raises(SinkError, match="that no sink has written"):
                next_batch(admin, query.ids, QUERY)

    def test_missing_record_of_progress_is_logged(self, query: Query, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "stratalog.spark.sink")
        query.driver().commit(7, query.tasks(0))
        assert "has no record of earlier batches, although batch 7 is not the first" in caplog.text


class TestBatch:
    def test_batch_write_is_atomic(self, query: Query) -> None:
        ids = SinkIds("batch-1")
        servers = query.broker.bootstrap_servers

        def tasks(ids: SinkIds) -> list[PreparedTransaction]:
            actual: list[PreparedTransaction] = []
            for task in range(TASKS):
                batch = query.batch_of(0, task)
                actual += write_in_transactions([batch, batch.slice(0, 0)], query.options, Attempt(ids, task, 0))[1]
            return actual

        abort_batch(query.options, ids, tasks(ids)[:1])
        assert values(servers, query.topic, PARTITIONS) == []
        ids = SinkIds("batch-2")
        prepared = tasks(ids)
        fenced = tasks(ids)
        with pytest.raises(BrokerError):
            commit_batch(query.options, ids, [prepared[0], fenced[1]])
        abort_batch(query.options, ids, [])
        assert values(servers, query.topic, PARTITIONS) == []
        ids = SinkIds("batch-3")
        commit_batch(query.options, ids, tasks(ids))
        assert values(servers, query.topic, PARTITIONS) == query.expected(1)
        assert nothing_is_open(servers, query.topic, PARTITIONS)
        with Admin(servers) as admin:
            listed = [each.transactional_id for each in admin.list_transactions()]
        assert [each for each in listed if each.startswith("stratalog-spark-batch-")] == []

    def test_more_tasks_than_can_be_ended_together_are_refused(self, query: Query) -> None:
        many = [PreparedTransaction(f"t{number}", 1, 0) for number in range(10_000)]
        with pytest.raises(SinkError, match="the rows are in 10000 transactions, but at most 9999 can be"):
            commit_batch(query.options, query.ids, many)


class TestTasks:
    def test_long_task_has_several_transactions(self, query: Query) -> None:
        """Prepare as the timer would after minutes."""
        transactions = TaskTransactions(query.options, Attempt(query.ids, 0, 0))
        for task in range(TASKS):
            transactions.send(query.batch_of(0, task))
            with transactions._lock:
                transactions._prepare()
        prepared = transactions.prepared()
        transactions.close()
        assert len(prepared) == TASKS
        query.driver().commit(0, prepared)
        query.check(1)

    def test_timer_prepares_while_a_task_waits_for_rows(self, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TaskTransactions, "prepared_after", 0.001)  # 60 ms
        transactions = TaskTransactions(query.options, Attempt(query.ids, 0, 0))
        transactions.send(query.batch_of(0, 0))
        with Admin(query.broker.bootstrap_servers) as admin:
            while not admin.prepared_transactions(query.ids.prefix):
                time.sleep(0.01)
        transactions.send(query.batch_of(0, 1))
        prepared = transactions.prepared()
        transactions.close()
        query.driver().commit(0, prepared)
        query.check(1)

    def test_failed_task_leaves_no_open_transaction(self, query: Query) -> None:
        def rows() -> Iterator[pa.RecordBatch]:
            yield query.batch_of(0, 0)
            raise DiedError

        with pytest.raises(DiedError):
            write_in_transactions(rows(), query.options, Attempt(query.ids, 0, 0))
        assert nothing_is_open(query.broker.bootstrap_servers, query.topic, PARTITIONS)
        assert values(query.broker.bootstrap_servers, query.topic, PARTITIONS) == []


def test_ids_of_a_sink_share_a_partition_of_many(stratalog_new_broker: Callable[..., BrokerProcess]) -> None:
    broker = stratalog_new_broker({"transaction.state.log.num.partitions": 50})
    broker.create_topic("orders", PARTITIONS)
    query = Query(broker, "orders", "some-sink")
    query.run(0)
    query.run(1)
    query.check(2)
    query.close()


class TestDelivery:
    def options(self, broker: BrokerProcess, **more: str) -> WriteOptions:
        return parse({"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "t", **more})

    def test_delivery_is_exactly_once_if_the_broker_supports_it(self, stratalog_broker: BrokerProcess) -> None:
        assert resolved(self.options(stratalog_broker)).delivery is Delivery.EXACTLY_ONCE
        plain = self.options(stratalog_broker, delivery="at-least-once")
        assert resolved(plain).delivery is Delivery.AT_LEAST_ONCE

    def test_unsupported_exactly_once_is_logged_or_refused(
        self, stratalog_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Apache Kafka does not support the API; test_sink_compat.py tests that."""

        def unsupported(*_: Any, **__: Any) -> None:
            raise UnsupportedVersionError("the broker does not serve STRATALOG")

        monkeypatch.setattr(sink_transactions, "_can", {})
        monkeypatch.setattr(Admin, "prepared_transactions", unsupported)
        assert resolved(self.options(stratalog_broker)).delivery is Delivery.AT_LEAST_ONCE
        assert "writes its rows again (delivery is at-least-once)" in caplog.text
        with pytest.raises(SinkError, match=r"delivery is exactly-once, but .* needs a Stratalog broker"):
            resolved(self.options(stratalog_broker, delivery="exactly-once"))
