from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from stratalog.protocol.api_keys import ApiKey
from tests.broker.apis.admin_lab import AdminLab, versions


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[AdminLab]:
    with AdminLab(tmp_path, node_id=7, max_request_partition_size_limit=6) as lab:
        yield lab


class TestDescribeCluster:
    def describe(
        self, lab: AdminLab, version: int | None = None, *, operations: bool = False, endpoint: int = 1
    ) -> Any:
        return lab.answer(
            ApiKey.DESCRIBE_CLUSTER,
            version,
            include_cluster_authorized_operations=operations,
            endpoint_type=endpoint,
            include_fenced_brokers=True,
        )

    @pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLUSTER))
    def test_broker_is_described_with_its_advertised_address(self, lab: AdminLab, version: int) -> None:
        answer = self.describe(lab, version)
        assert (answer.error_code, answer.cluster_id, answer.controller_id) == (ErrorCode.none, "the-cluster", 7)
        [broker] = answer.brokers
        assert (broker.broker_id, broker.host, broker.port, broker.rack) == (7, "broker.example", 9092, None)
        assert answer.cluster_authorized_operations == -(2**31)
        if version >= 2:
            assert not broker.is_fenced

    def test_operations_are_returned_only_on_request(self, lab: AdminLab) -> None:
        assert self.describe(lab, operations=True).cluster_authorized_operations == 8096

    @pytest.mark.parametrize(
        ("endpoint", "code"),
        [(2, ErrorCode.mismatched_endpoint_type), (0, ErrorCode.unsupported_endpoint_type), (-1, 115), (127, 115)],
    )
    @pytest.mark.parametrize("version", [1, 2])
    def test_other_endpoints_are_refused(self, lab: AdminLab, version: int, endpoint: int, code: int) -> None:
        answer = self.describe(lab, version, endpoint=endpoint)
        assert answer.error_code == code
        assert str(endpoint) in answer.error_message
        assert list(answer.brokers) == []


class TestDescribeTopicPartitions:
    def page(
        self, lab: AdminLab, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
    ) -> tuple[list[tuple[str, list[int], str]], tuple[str, int] | None]:
        answer = lab.answer(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            topics=[{"name": name} for name in names],
            response_partition_limit=limit,
            cursor=None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
        )
        topics = [
            (topic.name, [each.partition_index for each in topic.partitions], topic.error_code.name)
            for topic in answer.topics
        ]
        following = answer.next_cursor
        return topics, None if following is None else (following.topic_name, following.partition_index)

    def test_partition_is_described_in_full(self, lab: AdminLab) -> None:
        created = lab.topics.create("__consumer_offsets", 1, {})
        [topic] = lab.answer(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            topics=[{"name": "__consumer_offsets"}],
            response_partition_limit=1,
            cursor=None,
        ).topics
        assert (topic.topic_id, topic.is_internal, topic.topic_authorized_operations) == (created.id, True, 3576)
        [partition] = topic.partitions
        assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (ErrorCode.none, 7, 0)
        assert partition.replica_nodes == partition.isr_nodes == (7,)
        assert partition.eligible_leader_replicas == partition.last_known_elr == partition.offline_replicas == ()

    def test_topics_come_sorted_and_once(self, lab: AdminLab) -> None:
        for name in ("b", "a", "c"):
            lab.topics.create(name, 1, {})
        everything = [("a", [0], "none"), ("b", [0], "none"), ("c", [0], "none")]
        assert self.page(lab) == (everything, None)
        assert self.page(lab, "c", "b", "c", "a") == (everything, None)
        assert self.page(lab, "c", "a") == ([everything[0], everything[2]], None)

    def test_unknown_and_invalid_names_get_errors(self, lab: AdminLab) -> None:
        lab.topics.create("b", 1, {})
        assert self.page(lab, "a", "b", "c/d") == (
            [("a", [], "unknown_topic_or_partition"), ("b", [0], "none"), ("c/d", [], "invalid_topic_exception")],
            None,
        )

    def test_page_ends_at_the_limit_of_the_request_or_of_the_broker(self, lab: AdminLab) -> None:
        lab.topics.create("a", 4, {})
        lab.topics.create("b", 5, {})
        assert self.page(lab, limit=3) == ([("a", [0, 1, 2], "none")], ("a", 3))
        assert self.page(lab, limit=4) == ([("a", [0, 1, 2, 3], "none")], ("b", 0))
        assert self.page(lab) == ([("a", [0, 1, 2, 3], "none"), ("b", [0, 1], "none")], ("b", 2))
        assert self.page(lab, cursor=("b", 2)) == ([("b", [2, 3, 4], "none")], None)
        assert self.page(lab, "a", "b", cursor=("a", 3), limit=2) == (
            [("a", [3], "none"), ("b", [0], "none")],
            ("b", 1),
        )

    @pytest.mark.parametrize("limit", [0, -1, -(2**31)])
    def test_limit_of_zero_still_returns_a_partition(self, lab: AdminLab, limit: int) -> None:
        lab.topics.create("a", 2, {})
        assert self.page(lab, limit=limit) == ([("a", [0], "none")], ("a", 1))

    def test_cursor_of_a_deleted_topic_continues_with_the_next_topic(self, lab: AdminLab) -> None:
        lab.topics.create("a", 1, {})
        lab.topics.create("c", 2, {})
        assert self.page(lab, cursor=("b", 1)) == ([("c", [0, 1], "none")], None)

    @pytest.mark.parametrize("partition", [2, 2**31 - 1])
    def test_cursor_after_the_last_partition_continues_with_the_next_topic(self, lab: AdminLab, partition: int) -> None:
        lab.topics.create("a", 2, {})
        lab.topics.create("b", 1, {})
        assert self.page(lab, cursor=("a", partition)) == ([("a", [], "none"), ("b", [0], "none")], None)

    @pytest.mark.parametrize("cursor", [("a", -1), ("z", 0)])
    def test_invalid_cursor_is_refused(self, lab: AdminLab, cursor: tuple[str, int]) -> None:
        lab.topics.create("a", 2, {})
        assert self.page(lab, "a", cursor=cursor) == ([("a", [], "invalid_request")], None)

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.data())
    def test_all_pages_together_have_every_partition_once(self, lab: AdminLab, data: st.DataObject) -> None:
        counts = {"a": 4, "b": 1, "c.d": 7}
        for name, count in counts.items():
            if lab.topics.get(name) is None:
                lab.topics.create(name, count, {})
        asked = data.draw(st.lists(st.sampled_from([*counts, "aa", "zz"])))
        seen: list[tuple[str, int]] = []
        cursor: tuple[str, int] | None = None
        for _ in range(100):
            topics, cursor = self.page(lab, *asked, limit=data.draw(st.integers(1, 9)), cursor=cursor)
            seen += [(name, index) for name, partitions, _ in topics for index in partitions]
            if cursor is None:
                break
        wanted = [name for name in sorted(set(asked)) if name in counts] if asked else sorted(counts)
        assert seen == [(name, index) for name in wanted for index in range(counts[name])]
