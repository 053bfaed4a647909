from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.state_topic import partition_of
from stratalog.spark.sink_ids import SinkIds, java_hash, with_hash_of


def test_hash_is_javas() -> None:
    assert java_hash("hello") == 99162322
    assert java_hash("") == 0
    assert java_hash("polygenelubricants") == 2**31  # Integer.MIN_VALUE


@given(st.text(max_size=40), st.text(max_size=40))
def test_text_gets_the_hash_of_another(text: str, other: str) -> None:
    actual = with_hash_of(text, other)
    assert java_hash(actual) == java_hash(other)
    assert actual.startswith(text)
    assert all("A" <= letter <= "_" for letter in actual[len(text) :])


@given(st.text("abc-._09", min_size=1, max_size=30), st.integers(0, 10**6), st.integers(0, 9), st.integers(1, 1000))
def test_tasks_of_a_sink_share_its_partition(name: str, task: int, attempt: int, partitions: int) -> None:
    ids = SinkIds(name)
    each = ids.attempt(task, attempt, 0)
    assert partition_of(each, partitions) == partition_of(ids.own, partitions)
    assert each.startswith(ids.prefix)
    assert not ids.own.startswith(ids.prefix)
    assert len({each, ids.attempt(task, attempt, 1), ids.attempt(task + 1, attempt, 0)}) == 3
