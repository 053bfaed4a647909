from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptCheckpointError
from stratalog.storage import checkpoints
from stratalog.storage.disk import Disk
from stratalog.storage.names import TopicPartition
from stratalog.storage.offset_checkpoint import OffsetCheckpoint
from tests.storage.hand_made import GOLDEN

DATA = GOLDEN / "data-directory"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())
KAFKAS = sorted(EXPECTED["checkpoints"])
PARTITIONS = sorted(path.parent for path in GOLDEN.glob("*/partition.metadata"))


@pytest.mark.parametrize("name", KAFKAS)
def test_kafkas_checkpoint_is_read(name: str) -> None:
    expected = {TopicPartition(topic, partition): offset for topic, partition, offset in EXPECTED["checkpoints"][name]}
    assert checkpoints.read_offsets(DATA / name) == expected


@pytest.mark.parametrize("name", KAFKAS)
def test_checkpoint_has_kafkas_bytes_up_to_the_order_of_lines(name: str) -> None:
    ours = checkpoints.format_offsets(checkpoints.read_offsets(DATA / name))
    kafkas = (DATA / name).read_bytes()
    assert ours.split(b"\n")[:2] == kafkas.split(b"\n")[:2]
    assert sorted(ours.split(b"\n")) == sorted(kafkas.split(b"\n"))


@pytest.mark.parametrize("directory", PARTITIONS, ids=lambda path: path.name)
def test_partition_files_are_written_as_kafka_writes_them(directory: Path) -> None:
    epochs = directory / "leader-epoch-checkpoint"
    assert checkpoints.format_epochs(checkpoints.read_epochs(epochs)) == epochs.read_bytes()
    metadata = directory / "partition.metadata"
    topic_id = checkpoints.read_partition_metadata(metadata)
    assert topic_id is not None
    assert checkpoints.format_partition_metadata(topic_id) == metadata.read_bytes()


def test_clean_shutdown_marker_is_what_kafka_parses() -> None:
    assert json.loads(checkpoints.format_clean_shutdown()) == {"version": 0, "brokerEpoch": -1}


offsets = st.dictionaries(
    st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31 - 1)),
    st.integers(0, 2**63 - 1),
    max_size=8,
)


@given(offsets=offsets)
def test_offsets_are_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, offsets: dict[TopicPartition, int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "offsets"
    path.write_bytes(checkpoints.format_offsets(offsets))
    assert checkpoints.read_offsets(path) == offsets


def test_missing_file_means_no_entries(tmp_path: Path) -> None:
    assert checkpoints.read_offsets(tmp_path / "none") == {}
    assert checkpoints.read_epochs(tmp_path / "none") == []
    assert checkpoints.read_partition_metadata(tmp_path / "none") is None


def test_empty_file_means_no_entries_as_in_a_new_data_directory_of_kafka(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_bytes(b"")
    assert checkpoints.read_offsets(path) == {}
    assert checkpoints.read_epochs(path) == []


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"0\n", "has 1 lines"),
        (b"1\n0\n", "version is '1'"),
        (b"0\n2\na 0 1\n", "count is '2', but 1 entries follow"),
        (b"0\n0\na 0 1\n", "count is '0', but 1 entries follow"),
        (b"0\n1\na 0\n", "line 3 is 'a 0'"),
        (b"0\n1\na 0 1 2\n", "line 3 is 'a 0 1 2'"),
        (b"0\n1\na b 1\n", "line 3 has 'b'"),
        (b"0\n1\na 0 1_0\n", "line 3 has '1_0'"),
        (b"0\n1\na 0 +1\n", r"line 3 has '\+1'"),
        (b"0\n1\na 0 -1\n", "line 3 has '-1'"),
        (b"0\n1\na 0 9223372036854775808\n", "line 3 has '9223372036854775808'"),
        (b"0\n1\na 2147483648 1\n", "line 3 has '2147483648'"),
        (b"x\n0\n", "line 1 has 'x'"),
        (b"\xff\xfe\n0\n", "is not text"),
        (b"\0" * 64, "has 1 lines"),
    ],
)
def test_corrupt_checkpoint_is_an_error_that_names_file_and_line(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=complaint) as caught:
        checkpoints.read_offsets(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"0\n1\n0\n", b"0\n1\n0 0 0\n", b"0\n1\nx 0\n", b"0\n1\n2147483648 0\n", b"0\n1\n0 9223372036854775808\n"],
)
def test_corrupt_epochs_are_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match="line 3"):
        checkpoints.read_epochs(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "version is ''"),
        (b"version: 1\ntopic_id: 2ajhXs3bSoOTec-oV6lQbg", "version is '1'"),
        (b"version: 0\n", "topic_id is ''"),
        (b"version: 0\ntopic_id: 2ajhXs3bSoOTec", "topic_id is '2ajhXs3bSoOTec'"),
        (b"version: 0\ntopic_id: !", "topic_id is '!'"),
    ],
)
def test_corrupt_partition_metadata_is_an_error(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "partition.metadata"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=complaint):
        checkpoints.read_partition_metadata(path)


def test_topic_id_is_read_as_written(tmp_path: Path) -> None:
    topic_id = uuid.UUID("d9a8e15e-cddb-4a83-9379-cfa857a9506e")
    content = checkpoints.format_partition_metadata(topic_id)
    assert content == b"version: 0\ntopic_id: 2ajhXs3bSoOTec-oV6lQbg"
    (tmp_path / "partition.metadata").write_bytes(content)
    assert checkpoints.read_partition_metadata(tmp_path / "partition.metadata") == topic_id


class TestOffsetCheckpoint:
    A, B = TopicPartition("a", 0), TopicPartition("b", 1)

    def test_changes_are_on_disk_when_update_returns(self, tmp_path: Path) -> None:
        checkpoint = OffsetCheckpoint(Disk(), tmp_path / "file")
        checkpoint.update({self.A: 5, self.B: 7})
        checkpoint.update({self.A: None, self.B: 8})
        assert (checkpoint.get(self.A), checkpoint.get(self.A, -1), checkpoint.get(self.B)) == (0, -1, 8)
        assert (tmp_path / "file").read_bytes() == b"0\n1\nb 1 8\n"
        assert OffsetCheckpoint(Disk(), tmp_path / "file").get(self.B) == 8

    def test_update_without_changes_writes_nothing(self, tmp_path: Path) -> None:
        checkpoint = OffsetCheckpoint(Disk(), tmp_path / "file")
        checkpoint.update({self.A: 5})
        (tmp_path / "file").unlink()
        checkpoint.update({self.A: 5, self.B: None})
        assert not (tmp_path / "file").exists()

    def test_corrupt_file_counts_as_empty_and_sets_damage(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"garbage")
        checkpoint = OffsetCheckpoint(Disk(), tmp_path / "file")
        assert checkpoint.damage is not None
        assert "has 1 lines" in checkpoint.damage
        assert checkpoint.get(self.A) == 0
        checkpoint.update({self.A: 3})
        assert OffsetCheckpoint(Disk(), tmp_path / "file").damage is None
