"""The demo from beginning to end: broker, replay, stream, SQL, check, chart; and all is put away, however it ends."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from stratalog.demo import flights as flight_data
from stratalog.demo.broker import DemoBroker
from stratalog.demo.check import check_answers, check_same
from stratalog.demo.engine import DemoSpark
from stratalog.demo.errors import DemoError
from stratalog.demo.expectation import delays_per_carrier_and_hour, in_order
from stratalog.demo.narrator import Narrator
from stratalog.demo.replay import DELAYS, FLIGHTS, make_topics, replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE_NAME, CHART_NAME = "delays.parquet", "delays.png"
_SHOWN_CARRIERS = 8


@dataclass(frozen=True)
class Answers:
    by_carrier: pd.DataFrame
    by_hour: pd.DataFrame


def tell(output: Path, flights: int, narrator: Narrator) -> None:
    """Raises DemoError where something is missing, WrongResultError where the result is not what pandas has."""
    _check_output(output)
    with ExitStack() as stack:
        # Beside the result: the table is moved there in one step when it is known to be right.
        output.mkdir(parents=True, exist_ok=True)
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".work-", dir=output)))
        narrator.headline(f"Stratalog demo: {flights:,} flights through a broker, a Spark stream and SQL")
        with narrator.waiting("starting a broker"):
            broker = stack.enter_context(DemoBroker(work))
            make_topics(broker.bootstrap_servers)
        narrator.said("broker", f"on {broker.bootstrap_servers}, process {broker.pid}", f"{narrator.seconds:.1f} s")
        events = _replay(broker.bootstrap_servers, flights, narrator)
        begun = narrator.seconds
        engine = stack.enter_context(DemoSpark(work))
        engine.start()
        with narrator.waiting("starting Spark"):
            expected = delays_per_carrier_and_hour(flights)  # by pandas, while the JVM starts
            spark = engine.session()
        narrator.said("spark", f"{spark.version}, no jar added", f"{narrator.seconds - begun:.1f} s")
        _stream(spark, broker.bootstrap_servers, events, work, narrator)
        answers = _ask(spark, broker.bootstrap_servers, narrator)
        with narrator.waiting("comparing with what pandas has"):
            _check(spark, answers, work / TABLE_NAME, expected, narrator)
        _keep(answers, work / TABLE_NAME, output, flights)
        narrator.said("chart", str(output / CHART_NAME))
        narrator.said("table", str(output / TABLE_NAME))
    narrator.said("done", "broker and Spark stopped, their files removed", f"{narrator.seconds:.0f} s in all")


def _check_output(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise DemoError(f"{output} is a file; give another --output, a directory")


def _replay(bootstrap_servers: str, flights: int, narrator: Narrator) -> int:
    with narrator.waiting("reading the flights"):
        departures = flight_data.departures(flights)
    with narrator.bar("replaying", departures.num_rows) as at:
        sent = replay(bootstrap_servers, departures, at)
    rate = f"{sent.events / sent.seconds:,.0f} events/s, {sent.bytes / sent.seconds / 1e6:,.0f} MB/s"
    narrator.said("replayed", f"{sent.events:,} departures as JSON to topic {FLIGHTS!r}, in order of leaving", rate)
    return sent.events + 1  # the last event, which ends the year


def _stream(spark: SparkSession, bootstrap_servers: str, events: int, work: Path, narrator: Narrator) -> None:
    from stratalog.demo.stream import delays, run, to_table, to_topic

    begun = narrator.seconds
    found = delays(spark, bootstrap_servers, events)
    with narrator.bar("streaming", events) as at:
        batches = run(lambda: to_topic(found, bootstrap_servers, work), at, narrator.warn)
    spent = narrator.seconds - begun
    narrator.said(
        "streamed",
        f"delays per carrier and hour to the compacted topic {DELAYS!r}, exactly once",
        f"{events / spent:,.0f} events/s",
        f"{batches} micro-batches, {spent:.1f} s",
    )
    begun = narrator.seconds
    with narrator.waiting("streaming the topic to Parquet"):
        table = work / TABLE_NAME
        run(lambda: to_table(spark, bootstrap_servers, table, work), lambda _: None, narrator.warn)
    narrator.said("kept", f"topic {DELAYS!r} as a Parquet table", f"{narrator.seconds - begun:.1f} s")


def _ask(spark: SparkSession, bootstrap_servers: str, narrator: Narrator) -> Answers:
    from stratalog.demo.question import BY_CARRIER, BY_HOUR, ask, make_views

    begun = narrator.seconds
    with narrator.waiting("asking the topic in SQL"):
        make_views(spark, bootstrap_servers)
        answers = Answers(ask(spark, BY_CARRIER), ask(spark, BY_HOUR))
    narrator.said("asked", f"topic {DELAYS!r} in SQL: who leaves late?", f"{narrator.seconds - begun:.1f} s")
    narrator.table(
        ["carrier ", "flights", "cancelled", "mean delay", "15 min late"],
        [
            [row.name, f"{row.flights:,}", f"{row.cancelled:,}", f"{row.mean:.1f} min", f"{row.late_share:.0%}"]
            for row in answers.by_carrier.dropna().head(_SHOWN_CARRIERS).itertuples(index=False)
        ],
    )
    return answers


def _check(spark: SparkSession, answers: Answers, table: Path, expected: pd.DataFrame, narrator: Narrator) -> None:
    from stratalog.demo.question import latest_delays

    rows = check_same("the topic", latest_delays(spark), expected)
    check_same("the Parquet table", in_order(spark.read.parquet(str(table)).toPandas()), expected)
    check_answers(answers.by_carrier, answers.by_hour, expected)
    narrator.good("checked", f"{rows:,} carriers and hours in the topic, the table and SQL: all as pandas has them")


def _keep(answers: Answers, table: Path, output: Path, flights: int) -> None:
    """The table takes the place of an earlier demo's. Spark's notes of which files count go: they name this place."""
    from stratalog.demo.chart import draw

    shutil.rmtree(table / "_spark_metadata", ignore_errors=True)
    shutil.rmtree(output / TABLE_NAME, ignore_errors=True)
    table.rename(output / TABLE_NAME)
    draw(answers.by_hour, answers.by_carrier, flights, output / CHART_NAME)
