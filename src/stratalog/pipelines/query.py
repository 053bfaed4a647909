"""SQL over topics: every topic is a view with its name and its content at the time when the query is planned.

A view is created when a query names it, so thousands of topics cost nothing. Names with dots or dashes need backquotes,
as usual in Spark: SELECT * FROM `my-topic`. The columns are the data source's; key and value are binary. The scan
itself compares keys, offsets, partitions and timestamps with constants, and skips what does not match. A condition on
string(key) is left to Spark.
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
_DATABASE = ["spark_catalog", "default"]  # Spark's prefix for a table that a statement changes
# Spark's statements that change a table, and the method that returns the table.
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
    """Plan a query; it runs when the frame is used. Raises UnknownTopicError for a name that is neither a topic nor a
    view, and Spark's errors for faulty SQL.

    Set `runs_once` if the frame is collected or written once, without changes. Filters are then pushed down if there is
    only one scan; stratalog.spark.push_down explains why not otherwise.
    """
    silence_raised_errors()  # missing views are expected here
    frame = _planned(spark, cluster, sql, push=False)
    if runs_once and not _has_run(frame) and spark.conf.get(_PUSH_DOWN) == "true" and _count_scans(frame) == 1:
        return _planned(spark, cluster, sql, push=True)
    return frame


def _has_run(frame: DataFrame) -> bool:
    """Return whether planning has run the statement, as Spark does with commands such as CREATE VIEW. Planning it again
    would run it again."""
    return str(frame._jdf.queryExecution().commandExecuted().getClass().getSimpleName()) == "CommandResult"


def _count_scans(frame: DataFrame) -> int:
    """Count the scans of the optimised plan, where a subquery or a WITH may appear more often than in the query."""
    return str(frame._jdf.queryExecution().optimizedPlan().toString()).count("RelationV2")


def _planned(spark: SparkSession, cluster: ClusterAddress, sql: str, *, push: bool) -> DataFrame:
    from pyspark.errors import AnalysisException

    created: set[str] = set()
    try:
        while True:
            try:
                return spark.sql(sql)
            except AnalysisException as error:
                topic = missing_name(error)
                if topic is None or topic in created:
                    raise
            if topic == _target_of(spark, sql):
                raise _no_such_table(topic)
            create_view(spark, cluster, topic, push=push)
            created.add(topic)
    finally:
        for topic in created:
            spark.catalog.dropTempView(topic)  # the next query creates it again, with the topic's content at that time


def create_view(spark: SparkSession, cluster: ClusterAddress, topic: str, *, push: bool = False) -> None:
    """Create a temporary view of the topic, with its name. Raises UnknownTopicError."""
    with cluster.admin() as admin:
        topics = sorted(admin.list_topics(include_internal=True))
    if topic not in topics:
        raise unknown_topic(topic, topics)
    options = {**cluster.read_options(), "subscribe": topic, "pushFilters": str(push).lower()}
    columns = ddl(include_headers=True)
    spark.read.format(FORMAT).options(**options).schema(columns).load().createOrReplaceTempView(quoted(topic))


def unknown_topic(name: str, topics: list[str]) -> UnknownTopicError:
    """Return the error for a name that is not one of these topics."""
    similar = difflib.get_close_matches(name, topics, 1)
    existing = _existing(topics)
    hint = f"did you mean {similar[0]!r}? {existing[0].upper()}{existing[1:]}" if similar else existing
    return UnknownTopicError(f"there is no topic or view {name!r}; {hint}")


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def missing_name(error: AnalysisException) -> str | None:
    """Return the name of the missing view, as a topic would have it, or None for other errors. Raises UnknownTopicError
    for a name that can't be a topic's."""
    if error.getCondition() != _NOT_FOUND:
        return None
    relation = (error.getMessageParameters() or {}).get("relationName", "")
    parts = [(match[1] or "").replace("``", "`") or match[2] for match in _QUOTED.finditer(relation)]
    if parts[:-1] == _DATABASE:
        raise _no_such_table(parts[-1])
    if len(parts) > 1:
        # Without backquotes, a.b means the table b of the database a.
        name = ".".join(parts)
        raise UnknownTopicError(f"there is no table {name!r}; write a topic of that name in backquotes: {quoted(name)}")
    return parts[0] if parts else None


def _no_such_table(name: str) -> UnknownTopicError:
    return UnknownTopicError(f"there is no table {name!r}; queries can only read topics (SELECT)")


def _target_of(spark: SparkSession, sql: str) -> str | None:
    """Return the name of the table that a statement would change, or None for a statement that only reads."""
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)
    accessor = _CHANGES.get(str(plan.getClass().getSimpleName()))
    if accessor is None:
        return None
    table = getattr(plan, accessor)()
    while str(table.getClass().getSimpleName()) == "SubqueryAlias":
        table = table.child()
    name = getattr(table, "multipartIdentifier", None)
    return None if name is None else str(name().mkString("."))


def _existing(topics: list[str]) -> str:
    own = [topic for topic in topics if not topic.startswith("__")]
    if not own:
        return "there are no topics yet"
    more = f", and {len(own) - _MOST_NAMED} more" if len(own) > _MOST_NAMED else ""
    return f"topics are: {', '.join(own[:_MOST_NAMED])}{more}"
