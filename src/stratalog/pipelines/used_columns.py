"""Which columns of each topic a query uses: Spark does not tell a Python source, and what is not decoded costs nothing.

Read off the analyzed plan, before Spark moves anything around in it: every column that the SQL names, or that a * in it
stands for, is in an expression there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stratalog.pipelines.cluster import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHEAPEST = "offset"  # for a query that only counts


def used_columns(frame: DataFrame) -> dict[str, list[str]]:
    """By topic, in the order of the view; a topic that is read twice has what both uses need."""
    plan = frame._jdf.queryExecution().analyzed()
    nodes = list(_nodes(plan))
    wanted = {attribute.exprId().id() for attribute in _sequence(plan.output())}
    for node in nodes:
        wanted |= {attribute.exprId().id() for attribute in _sequence(node.references().toSeq())}
    used: dict[str, list[str]] = {}
    for node in nodes:
        if node.nodeName().startswith("RelationV2") and node.name() == FORMAT:
            there = [(attribute.name(), attribute.exprId().id()) for attribute in _sequence(node.output())]
            before = used.get(node.options().get("subscribe"), [])
            names = [name for name, number in there if number in wanted or name in before]
            used[node.options().get("subscribe")] = names
    return {topic: names or [_CHEAPEST] for topic, names in used.items()}


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for part in (plan.children(), plan.subqueries()):
        for inner in _sequence(part):
            yield from _nodes(inner)


def _sequence(found: Any) -> Iterator[Any]:
    """A Scala Seq of the JVM's."""
    return (found.apply(index) for index in range(found.length()))
