"""SQL over topics: every topic is a view of its name, as it is when the query is planned.

A view is made when a query names it, so thousands of topics cost nothing.
Names with dots or dashes stand in backquotes, as everywhere in Spark: SELECT * FROM `my-topic`. The columns are the
source's: key and value are binary. Comparisons of keys, offsets, partitions and timestamps with constants are decided
by the scan itself, which skips what does not match; a condition on string(key) is not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from stratalog.errors import UnknownTopicError
from stratalog.pipelines.cluster import FORMAT, ClusterAddress
from stratalog.spark.schema import ALL_COLUMNS, ddl
from stratalog.spark.session import silence_raised_errors

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame, SparkSession

_NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
_QUOTED = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")
_MOST_NAMED = 20


def query(spark: SparkSession, cluster: ClusterAddress, sql: str) -> DataFrame:
    """What a query would give; it runs when that is asked for. Raises UnknownTopicError for a name that is neither a
    topic nor a view, and Spark's errors for what is wrong with the SQL."""
    from pyspark.errors import AnalysisException

    silence_raised_errors()  # those that are answered here are no news
    made: set[str] = set()
    try:
        while True:
            try:
                return spark.sql(sql)
            except AnalysisException as error:
                topic = missing_name(error)
                if topic is None or topic in made:
                    raise
            make_view(spark, cluster, topic)
            made.add(topic)
    finally:
        for topic in made:
            spark.catalog.dropTempView(topic)  # the next query makes its own, of what the topic is then


def make_view(spark: SparkSession, cluster: ClusterAddress, topic: str) -> None:
    """The topic as a temporary view of its name. Raises UnknownTopicError."""
    with cluster.admin() as admin:
        topics = sorted(admin.list_topics(include_internal=True))
    if topic not in topics:
        raise UnknownTopicError(f"there is no topic or view {topic!r}; {_there_are(topics)}")
    _make_view(spark, cluster, topic)


def _make_view(spark: SparkSession, cluster: ClusterAddress, topic: str, columns: Sequence[str] = ALL_COLUMNS) -> None:
    from pyspark.sql.types import StructType

    whole = cast("StructType", StructType.fromDDL(ddl(include_headers=True)))
    options = {**cluster.read_options(), "subscribe": topic}
    reader = spark.read.format(FORMAT).options(**options).schema(StructType([whole[name] for name in columns]))
    reader.load().createOrReplaceTempView(quoted(topic))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def missing_name(error: AnalysisException) -> str | None:
    """The name of the view that a query asked for in vain, as it would be a topic's; None for other errors."""
    if error.getCondition() != _NOT_FOUND:
        return None
    relation = (error.getMessageParameters() or {}).get("relationName", "")
    parts = [(match[1] or "").replace("``", "`") or match[2] for match in _QUOTED.finditer(relation)]
    if len(parts) > 1:
        # Unquoted, a.b means the table b of the database a; a view of that name is only found in backquotes.
        name = ".".join(parts)
        raise UnknownTopicError(
            f"there is no table {name!r}; a topic of that name stands in backquotes: {quoted(name)}"
        )
    return parts[0] if parts else None


def _there_are(topics: list[str]) -> str:
    own = [topic for topic in topics if not topic.startswith("__")]
    if not own:
        return "there are no topics yet"
    more = f", and {len(own) - _MOST_NAMED} more" if len(own) > _MOST_NAMED else ""
    return f"topics are: {', '.join(own[:_MOST_NAMED])}{more}"
