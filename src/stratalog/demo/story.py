"""The demo from start to end: broker, replay, stream, SQL, check, chart. Everything is stopped, however it ends."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from stratalog.demo import flights as flight_data
from stratalog.demo.check import check_results, check_same
from stratalog.demo.engine import DemoSpark
from stratalog.demo.errors import DemoError
from stratalog.demo.expectation import delays_per_carrier_and_hour, in_order
from stratalog.demo.narrator import Narrator
from stratalog.demo.replay import DELAYS, FLIGHTS, make_topics, replay
from stratalog.lab.serve_process import ServeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE_NAME, CHART_NAME = "delays.parquet", "delays.png"
BROKER_SETTINGS = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
_SHOWN_CARRIERS = 8


@dataclass(frozen=True)
class QueryResults:
    by_carrier: pd.DataFrame
    by_hour: pd.DataFrame


def run_demo(output: Path, flights: int, narrator: Narrator) -> None:
    """Leave the table and the chart in `output`. Raise DemoError if something is missing, and WrongResultError if the
    result is not what pandas computes."""
    _check_output(output)
    with ExitStack() as stack:
        # In the output directory, so that the table can be moved there in one step once it is checked.
        output.mkdir(parents=True, exist_ok=True)
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".work-", dir=output)))
        narrator.headline(f"Stratalog demo: {flights:,} flights through a broker, a Spark stream and SQL")
        with narrator.waiting("starting a broker"):
            broker = stack.enter_context(ServeProcess(work / "data", BROKER_SETTINGS, dies_with_thread=True))
            make_topics(broker.bootstrap_servers)
        narrator.report("broker", f"on {broker.bootstrap_servers}, process {broker.pid}", f"{narrator.seconds:.1f} s")
        events = _replay(broker.bootstrap_servers, flights, narrator)
        started = narrator.seconds
        engine = stack.enter_context(DemoSpark(work))
        engine.start()
        with narrator.waiting("starting Spark"):
            expected = delays_per_carrier_and_hour(flights)  # by pandas, while the JVM starts
            spark = engine.session()
        narrator.report("spark", f"{spark.version}, no jar added", f"{narrator.seconds - started:.1f} s")
        _stream(spark, broker.bootstrap_servers, events, work, narrator)
        results = _query(spark, broker.bootstrap_servers, narrator)
        with narrator.waiting("comparing with pandas"):
            _check(spark, results, work / TABLE_NAME, expected, narrator)
        _save(results, work / TABLE_NAME, output, flights)
        narrator.report("chart", str(output / CHART_NAME))
        narrator.report("table", str(output / TABLE_NAME))
    narrator.report("done", "broker and Spark stopped, their files removed", f"{narrator.seconds:.0f} s in all")


def _check_output(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise DemoError(f"{output} is a file; give another --output, a directory")


def _replay(bootstrap_servers: str, flights: int, narrator: Narrator) -> int:
    with narrator.waiting("reading the flights"):
        departures = flight_data.departures(flights)
    with narrator.bar("replaying", departures.num_rows) as show:
        sent = replay(bootstrap_servers, departures, show)
    rate = f"{sent.events / sent.seconds:,.0f} events/s, {sent.bytes / sent.seconds / 1e6:,.0f} MB/s"
    narrator.report("replayed", f"{sent.events:,} departures as JSON to topic {FLIGHTS!r}, in order of departure", rate)
    return sent.events + 1  # the last event, which ends the year


def _stream(spark: SparkSession, bootstrap_servers: str, events: int, work: Path, narrator: Narrator) -> None:
    from stratalog.demo.stream import delays, run, to_table, to_topic

    started = narrator.seconds
    stream = delays(spark, bootstrap_servers, events)
    with narrator.bar("streaming", events) as show:
        batches = run(lambda: to_topic(stream, bootstrap_servers, work), show, narrator.warn)
    spent = narrator.seconds - started
    narrator.report(
        "streamed",
        f"delays per carrier and hour to the compacted topic {DELAYS!r}, exactly once",
        f"{events / spent:,.0f} events/s",
        f"{batches} micro-batches, {spent:.1f} s",
    )
    started = narrator.seconds
    with narrator.waiting("streaming the topic to Parquet"):
        table = work / TABLE_NAME
        run(lambda: to_table(spark, bootstrap_servers, table, work), lambda _: None, narrator.warn)
    narrator.report("kept", f"topic {DELAYS!r} as a Parquet table", f"{narrator.seconds - started:.1f} s")


def _query(spark: SparkSession, bootstrap_servers: str, narrator: Narrator) -> QueryResults:
    from stratalog.demo.question import BY_CARRIER, BY_HOUR, make_views, run_query

    started = narrator.seconds
    with narrator.waiting("querying the topic in SQL"):
        make_views(spark, bootstrap_servers)
        results = QueryResults(run_query(spark, BY_CARRIER), run_query(spark, BY_HOUR))
    narrator.report(
        "queried", f"topic {DELAYS!r} in SQL: which carriers leave late?", f"{narrator.seconds - started:.1f} s"
    )
    narrator.table(
        ["carrier ", "flights", "cancelled", "mean delay", "15 min late"],
        [
            [row.name, f"{row.flights:,}", f"{row.cancelled:,}", f"{row.mean:.1f} min", f"{row.late_share:.0%}"]
            for row in results.by_carrier.dropna().head(_SHOWN_CARRIERS).itertuples(index=False)
        ],
    )
    return results


def _check(spark: SparkSession, results: QueryResults, table: Path, expected: pd.DataFrame, narrator: Narrator) -> None:
    from stratalog.demo.question import latest_delays

    rows = check_same("the topic", latest_delays(spark), expected)
    check_same("the Parquet table", in_order(spark.read.parquet(str(table)).toPandas()), expected)
    check_results(results.by_carrier, results.by_hour, expected)
    narrator.confirm(
        "checked", f"{rows:,} carriers and hours in the topic, the table and SQL: all as pandas computes them"
    )


def _save(results: QueryResults, table: Path, output: Path, flights: int) -> None:
    """Replace the results of an earlier run. Spark's own metadata is removed, because it has the paths of the work
    directory."""
    from stratalog.demo.chart import draw

    shutil.rmtree(table / "_spark_metadata", ignore_errors=True)
    shutil.rmtree(output / TABLE_NAME, ignore_errors=True)
    table.rename(output / TABLE_NAME)
    draw(results.by_hour, results.by_carrier, flights, output / CHART_NAME)
