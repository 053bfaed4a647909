"""SQL over topics: every topic is a view of its name, as it is when the query is planned.

A view is made when a query names it, so thousands of topics cost nothing.
Names with dots or dashes stand in backquotes, as everywhere in Spark: SELECT * FROM `my-topic`. The columns are the
source's: key and value are binary. Comparisons of keys, offsets, partitions and timestamps with constants are decided
by the scan itself, which skips what does not match; a condition on string(key) is not.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from stratalog.errors import UnknownTopicError
from stratalog.pipelines.cluster import FORMAT, ClusterAddress
from stratalog.spark.schema import ddl
from stratalog.spark.session import silence_raised_errors

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame, SparkSession

_NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
_QUOTED = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")
_MOST_NAMED = 20
_DATABASE = ["spark_catalog", "default"]  # named where a table is to be changed
# Statements of Spark's that change a table, and what gives the table.
_CHANGES = {
    "InsertIntoStatement": "table",
    "UpdateTable": "table",
    "DeleteFromTable": "table",
    "MergeIntoTable": "targetTable",
    "TruncateTable": "table",
    "AddColumns": "table",
    "AlterColumns": "table",
    "DropColumns": "table",
    "RenameColumn": "table",
    "SetTableProperties": "table",
}
_PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def query(spark: SparkSession, cluster: ClusterAddress, sql: str, *, runs_once: bool = False) -> DataFrame:
    """What a query would give; it runs when that is asked for. Raises UnknownTopicError for a name that is neither a
    topic nor a view, and Spark's errors for what is wrong with the SQL.

    `runs_once`: the frame is collected or written as it is, once. Then conditions are the scan's to decide, if there is
    only one: why not else is in stratalog.spark.push_down."""
    silence_raised_errors()  # those that are answered here are no news
    frame = _planned(spark, cluster, sql, push=False)
    if runs_once and not _has_run(frame) and spark.conf.get(_PUSH_DOWN) == "true" and _count_scans(frame) == 1:
        return _planned(spark, cluster, sql, push=True)
    return frame


def _has_run(frame: DataFrame) -> bool:
    """Spark runs a command, as CREATE VIEW is one, when it is planned: planned again, it would run again."""
    return str(frame._jdf.queryExecution().commandExecuted().getClass().getSimpleName()) == "CommandResult"


def _count_scans(frame: DataFrame) -> int:
    """Where the query is optimised: a subquery or a WITH may be there twice that was written once."""
    return str(frame._jdf.queryExecution().optimizedPlan().toString()).count("RelationV2")


def _planned(spark: SparkSession, cluster: ClusterAddress, sql: str, *, push: bool) -> DataFrame:
    from pyspark.errors import AnalysisException

    made: set[str] = set()
    try:
        while True:
            try:
                return spark.sql(sql)
            except AnalysisException as error:
                topic = missing_name(error)
                if topic is None or topic in made:
                    raise
            if topic == _target_of(spark, sql):
                raise _changes_none(topic)
            make_view(spark, cluster, topic, push=push)
            made.add(topic)
    finally:
        for topic in made:
            spark.catalog.dropTempView(topic)  # the next query makes its own, of what the topic is then


def make_view(spark: SparkSession, cluster: ClusterAddress, topic: str, *, push: bool = False) -> None:
    """The topic as a temporary view of its name. Raises UnknownTopicError."""
    with cluster.admin() as admin:
        topics = sorted(admin.list_topics(include_internal=True))
    if topic not in topics:
        raise unknown_topic(topic, topics)
    options = {**cluster.read_options(), "subscribe": topic, "pushFilters": str(push).lower()}
    whole = ddl(include_headers=True)
    spark.read.format(FORMAT).options(**options).schema(whole).load().createOrReplaceTempView(quoted(topic))


def unknown_topic(name: str, topics: list[str]) -> UnknownTopicError:
    """The error for a name that is none of these topics."""
    similar = difflib.get_close_matches(name, topics, 1)
    meant = f"did you mean {similar[0]!r}? Topics" if similar else "topics"
    return UnknownTopicError(f"there is no topic or view {name!r}; {_there_are(topics).replace('topics', meant, 1)}")


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def missing_name(error: AnalysisException) -> str | None:
    """The name of the view that a query asked for in vain, as it would be a topic's; None for other errors."""
    if error.getCondition() != _NOT_FOUND:
        return None
    relation = (error.getMessageParameters() or {}).get("relationName", "")
    parts = [(match[1] or "").replace("``", "`") or match[2] for match in _QUOTED.finditer(relation)]
    if parts[:-1] == _DATABASE:
        raise _changes_none(parts[-1])
    if len(parts) > 1:
        # Unquoted, a.b means the table b of the database a; a view of that name is only found in backquotes.
        name = ".".join(parts)
        raise UnknownTopicError(
            f"there is no table {name!r}; a topic of that name stands in backquotes: {quoted(name)}"
        )
    return parts[0] if parts else None


def _changes_none(name: str) -> UnknownTopicError:
    return UnknownTopicError(f"there is no table {name!r}; a query reads topics (SELECT), and changes none")


def _target_of(spark: SparkSession, sql: str) -> str | None:
    """The table that a statement would change, as it is named; None for one that only reads."""
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)
    accessor = _CHANGES.get(str(plan.getClass().getSimpleName()))
    if accessor is None:
        return None
    table = getattr(plan, accessor)()
    while str(table.getClass().getSimpleName()) == "SubqueryAlias":
        table = table.child()
    name = getattr(table, "multipartIdentifier", None)
    return None if name is None else str(name().mkString("."))


def _there_are(topics: list[str]) -> str:
    own = [topic for topic in topics if not topic.startswith("__")]
    if not own:
        return "there are no topics yet"
    more = f", and {len(own) - _MOST_NAMED} more" if len(own) > _MOST_NAMED else ""
    return f"topics are: {', '.join(own[:_MOST_NAMED])}{more}"
