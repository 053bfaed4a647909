"""stratalog transaction: show transactions, and abort those that hang or are prepared."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from stratalog.cli.broker_names import complete_topic
from stratalog.cli.options import AsJson, BrokerAddress, CommandGroup, DryRun, argument, flag, option, report_errors
from stratalog.cli.output import QUIET, STRONG, Columns, Output, Row, text, time
from stratalog.cli.program import CommandError
from stratalog.cli.wording import format_time, printable
from stratalog.client.admin import Admin, HangingTransaction, TransactionDescription
from stratalog.client.errors import UnsupportedVersionError
from stratalog.client.metadata import TopicPartition
from stratalog.client.prepared_transaction import PreparedTransaction

_NEVER_MS = 2**31 - 1
_PARTITION = re.compile(r"(?P<topic>.+):(?P<partition>[0-9]{1,10})")
Ids: TypeAlias = Annotated[list[str], argument("ID...", "Transactional ids.")]

app = CommandGroup("""List and describe transactions, and abort those that hang.

\b
Examples:
  stratalog transaction list
  stratalog transaction list --hanging
  stratalog transaction describe payments
  stratalog transaction abort orders:0 --producer-id 4000
  stratalog transaction abort --id payments
""")


@app.add("list")
def list_transactions(
    server: BrokerAddress,
    states: Annotated[
        list[str] | None, option("--state", "STATE", "Only this state: Ongoing, CompleteCommit, ... Repeatable.")
    ] = None,
    longer_than: Annotated[
        int | None, option("--longer-than", "MS", "Only transactions that began longer ago.", min=0)
    ] = None,
    hanging: Annotated[bool, flag("--hanging", "List open transactions that no coordinator will end.")] = False,
    topics: Annotated[
        list[str] | None,
        option("--topic -t", "TOPIC", "With --hanging: only this topic. Repeatable.", autocompletion=complete_topic),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the transactional ids, or the transactions that hang.

    A prepared transaction waits for another process to end it: its producer is done with it, and its timeout does not
    apply. A transaction hangs if it is open in a partition and no coordinator will end it; consumers of committed
    records then wait without end. --hanging checks all partitions, or those of --topic.

    \b
    Examples:
      stratalog transaction list --state Ongoing --longer-than 60000
      stratalog transaction list --hanging --topic orders --json
    """
    output = Output(as_json=as_json)
    with server.admin() as admin:
        if hanging:
            _show_hanging(output, admin.find_hanging_transactions(_partitions_of(admin, topics)))
            return
        transactions = admin.list_transactions(states=states or (), longer_than_ms=longer_than)
        prepared = _prepared_ids(admin) if transactions else frozenset()
    rows = [
        {
            "type": "transaction",
            "transactional_id": transaction.transactional_id,
            "state": transaction.state,
            "producer_id": transaction.producer_id,
            "prepared": transaction.transactional_id in prepared,
        }
        for transaction in transactions
    ]
    columns: Columns = {"transactional id": "transactional_id", "state": _state, "producer": text("producer_id")}
    output.rows(rows, columns, empty="no transactions yet; a transactional id appears with its first producer")


@app.add("describe")
def describe(ids: Ids, server: BrokerAddress, as_json: AsJson = False) -> None:
    """Show state, producer, start time and partitions.

    \b
    Examples:
      stratalog transaction describe payments
      stratalog transaction describe payments --json
    """
    output = Output(as_json=as_json)
    with server.admin() as admin:
        outcomes = admin.describe_transactions(ids)
        prepared = _prepared_ids(admin) if outcomes.succeeded() else frozenset()
    for transaction in outcomes.succeeded().values():
        row = _description(transaction, transaction.transactional_id in prepared)
        if as_json:
            output.json(row)
        else:
            _show(output, row)
    report_errors(outcomes.errors.values())


@app.add("abort")
def abort(
    server: BrokerAddress,
    partition: Annotated[
        str | None, argument("[TOPIC:PARTITION]", "The partition in which it hangs, like orders:0.")
    ] = None,
    producer_id: Annotated[
        int | None, option("--producer-id", "NUMBER", "Its producer, as `list --hanging` shows it.")
    ] = None,
    transactional_id: Annotated[
        str | None, option("--id", "ID", "The transactional id of a prepared transaction.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Abort a transaction that hangs, or with --id a prepared one.

    A hanging transaction is ended by a marker in that partition. An open transaction that is not prepared is ended by
    its coordinator, after transaction.timeout.ms at the latest. Once a prepared transaction is aborted, a commit of it
    is refused.

    \b
    Examples:
      stratalog transaction abort --id payments
      stratalog transaction abort orders:0 --producer-id 4000 --dry-run
      stratalog transaction abort orders:0 --producer-id 4000
    """
    done = "would abort" if dry_run else "aborted"
    if transactional_id is not None and partition is None and producer_id is None:
        with server.admin() as admin:
            prepared = _prepared(admin, transactional_id)
            if not dry_run:
                admin.finish_transactions([prepared], commit=False)
        about = f"{printable(transactional_id)}, producer {prepared.producer_id}"
        Output().line(f"{done} the prepared transaction of {about}")
        return
    if partition is None or producer_id is None or transactional_id is not None:
        raise CommandError("name what to abort: TOPIC:PARTITION and --producer-id, or --id for a prepared transaction")
    match = _PARTITION.fullmatch(partition)
    if match is None:
        raise CommandError(f"TOPIC:PARTITION is {partition!r}; it must be like orders:0")
    key = TopicPartition(match["topic"], int(match["partition"]))
    with server.admin() as admin:
        producer = _hanging(admin, key, producer_id).producer
        if not dry_run:
            admin.abort_transaction(key, producer_id, producer.producer_epoch, producer.coordinator_epoch or 0)
    since = f"open since offset {producer.transaction_start}"
    Output().line(f"{done} the transaction of producer {producer_id} in {key}, {since}")


def _prepared_ids(admin: Admin) -> frozenset[str]:
    """Return the ids of transactions that wait for another process to end them. Only a Stratalog broker has any."""
    try:
        return frozenset(prepared.transactional_id for prepared in admin.prepared_transactions())
    except UnsupportedVersionError:
        return frozenset()


def _state(row: Row) -> str:
    return f"{row['state']}, prepared" if row["prepared"] else str(row["state"])


def _description(transaction: TransactionDescription, is_prepared: bool) -> Row:
    return {
        "type": "transaction",
        "transactional_id": transaction.transactional_id,
        "state": transaction.state,
        "prepared": is_prepared,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "timeout_ms": transaction.timeout_ms,
        "started_ms": transaction.started_ms,
        "partitions": [[partition.topic, partition.partition] for partition in transaction.partitions],
    }


def _show(output: Output, row: Row) -> None:
    timeout = "no timeout" if row["timeout_ms"] == _NEVER_MS else f"timeout {row['timeout_ms']:,} ms"
    about = f"  {_state(row)}, producer {row['producer_id']} epoch {row['producer_epoch']}, {timeout}"
    if row["started_ms"] is not None:
        about += f", begun {format_time(row['started_ms'])}"
    output.line((printable(row["transactional_id"]), STRONG), (about, QUIET))
    partitions = [{"topic": topic, "partition": partition} for topic, partition in row["partitions"]]
    columns: Columns = {"topic": "topic", "partition": text("partition")}
    output.rows(partitions, columns, indent=2, empty="  the transaction has no partition")


def _show_hanging(output: Output, transactions: list[HangingTransaction]) -> None:
    rows = [
        {
            "type": "hanging_transaction",
            "topic": transaction.partition.topic,
            "partition": transaction.partition.partition,
            "producer_id": transaction.producer.producer_id,
            "producer_epoch": transaction.producer.producer_epoch,
            "coordinator_epoch": transaction.producer.coordinator_epoch,
            "start_offset": transaction.producer.transaction_start,
            "last_timestamp_ms": transaction.producer.last_timestamp_ms,
        }
        for transaction in transactions
    ]
    columns: Columns = {
        "topic": "topic",
        "partition": text("partition"),
        "producer": text("producer_id"),
        "epoch": text("producer_epoch"),
        "open since": "start_offset",
        "last write": time("last_timestamp_ms"),
    }
    output.rows(rows, columns, empty="no transaction hangs")


def _partitions_of(admin: Admin, topics: list[str] | None) -> list[TopicPartition]:
    """Return all partitions of these topics, by default of all topics."""
    infos = admin.describe_topics(topics).check() if topics else admin.list_topics(include_internal=True)
    return [TopicPartition(name, index) for name, info in infos.items() for index in range(len(info.partitions))]


def _hanging(admin: Admin, partition: TopicPartition, producer_id: int) -> HangingTransaction:
    for transaction in admin.find_hanging_transactions([partition]):
        if transaction.producer.producer_id == producer_id:
            return transaction
    raise CommandError(
        f"producer {producer_id} has no transaction that hangs in {partition}; `stratalog transaction list --hanging` "
        "shows all that do, and a coordinator ends those that it knows"
    )


def _prepared(admin: Admin, transactional_id: str) -> PreparedTransaction:
    for transaction in admin.prepared_transactions(transactional_id):
        if transaction.transactional_id == transactional_id:
            return transaction
    raise CommandError(
        f"{transactional_id!r} has no transaction that is prepared; `stratalog transaction list` shows all ids, and a "
        "coordinator ends open transactions that are not prepared"
    )
