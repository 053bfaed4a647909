"""A data directory of a cluster's broker knows whether the machine went down, and sets partitions
aside that the cluster does not know."""

from __future__ import annotations

import logging
import re
import uuid
from pathlib import Path

import pytest

from stratalog.errors import LogClosedError, StorageError
from stratalog.storage import LogConfig, LogDirectory
from stratalog.storage import boot_note as boot_note_module
from stratalog.storage.disk import Disk
from stratalog.storage.names import (
    BOOT_NOTE,
    CLEAN_SHUTDOWN,
    doomed_directory,
    is_doomed_directory,
    parse_partition_directory,
    stray_directory,
)
from stratalog.storage.names import TopicPartition as Key
from tests.storage.faults.faulty_disk import FaultyDisk
from tests.storage.hand_made import batch_of, left_by_kill, offsets_of
from tests.storage.log_builder import PARTITION

SMALL = LogConfig(segment_index_bytes=1024, retention_ms=-1)


class Machine:
    """The kernel's boot id, which changes when the machine goes down."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.boots = 0
        self.reboot()

    def reboot(self) -> None:
        self.boots += 1
        self._path.write_text(f"boot-{self.boots}\n")

    def hide(self) -> None:
        self._path.unlink()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    path = tmp_path / "boot_id"
    monkeypatch.setattr(boot_note_module, "BOOT_ID_FILE", path)
    return Machine(path)


def open_data(path: Path, *, in_cluster: bool = True, disk: Disk | None = None) -> LogDirectory:
    return LogDirectory.open(path, SMALL, background=False, in_cluster=in_cluster, disk=disk)


def used(path: Path, *, in_cluster: bool = True) -> LogDirectory:
    directory = open_data(path, in_cluster=in_cluster)
    directory.log(*PARTITION).append(batch_of(1))
    return directory


class TestLostTail:
    def test_new_directory_has_lost_nothing(self, tmp_path: Path, machine: Machine) -> None:
        for _ in range(2):
            with used(tmp_path / "data") as directory:
                assert not directory.lost_tail
                assert (tmp_path / "data" / BOOT_NOTE).read_text() == "boot-1\n"
            assert not (tmp_path / "data" / BOOT_NOTE).exists()
            machine.reboot()
            (tmp_path / "boot_id").write_text("boot-1\n")

    def test_kill_loses_nothing(self, tmp_path: Path, machine: Machine) -> None:
        with used(tmp_path / "data"):
            crashed = left_by_kill(tmp_path / "data", tmp_path / "copy")
        for _ in range(2):
            directory = open_data(crashed)
            assert not directory.lost_tail
            crashed = left_by_kill(crashed, crashed.with_name(crashed.name + "+"))
            directory.close()

    def test_power_cut_loses_the_tail(self, tmp_path: Path, machine: Machine) -> None:
        disk = FaultyDisk(tmp_path / "live")
        with open_data(tmp_path / "live", disk=disk) as directory:
            disk.sync_directory(tmp_path / "live")
            log = directory.log(*PARTITION)
            log.append(batch_of(1, 2))
            log.flush()
            log.append(batch_of(3))
            disk.durable_image(tmp_path / "image")
        machine.reboot()
        with open_data(tmp_path / "image") as directory:
            assert directory.lost_tail
            assert offsets_of(directory.log(*PARTITION)) == [0, 1]
        disk.forget()

    def test_reboot_after_a_clean_shutdown_loses_nothing(self, tmp_path: Path, machine: Machine) -> None:
        used(tmp_path / "data").close()
        machine.reboot()
        with open_data(tmp_path / "data") as directory:
            assert not directory.lost_tail

    def test_power_cut_during_a_clean_shutdown_is_noticed_or_harmless(self, tmp_path: Path, machine: Machine) -> None:
        disk = FaultyDisk(tmp_path / "live")
        images: list[Path] = []
        directory = open_data(tmp_path / "live", disk=disk)
        disk.sync_directory(tmp_path / "live")
        directory.log(*PARTITION).append(batch_of(1))

        def cut_power() -> None:
            images.append(tmp_path / f"image-{len(images)}")
            disk.durable_image(images[-1])

        disk.on_call = cut_power
        directory.close()
        disk.on_call = None
        machine.reboot()
        for image in images:
            with open_data(image) as again:
                assert again.lost_tail or offsets_of(again.log(*PARTITION)) == [0]
        disk.forget()

    def test_loss_is_not_forgotten_until_it_is_reported(self, tmp_path: Path, machine: Machine) -> None:
        """A broker that is killed again before it has reported the loss would count as complete."""
        with used(tmp_path / "data"):
            crashed = left_by_kill(tmp_path / "data", tmp_path / "copy")
        machine.reboot()
        with open_data(crashed) as directory:
            assert directory.lost_tail
            killed = left_by_kill(crashed, tmp_path / "killed")
        for path in (crashed, killed):  # after a clean shutdown, and after another kill
            with open_data(path) as directory:
                directory.log(*PARTITION)
                lost = [directory.lost_tail]
                directory.forget_lost_tail()
                assert [*lost, directory.lost_tail] == [True, False]
                again = left_by_kill(path, path.with_name(path.name + "+"))
            for reported in (path, again):
                with open_data(reported) as directory:
                    assert not directory.lost_tail

    def test_directory_of_a_single_broker(self, tmp_path: Path, machine: Machine) -> None:
        with used(tmp_path / "data", in_cluster=False) as directory:
            assert not directory.lost_tail
            directory.forget_lost_tail()
            crashed = left_by_kill(tmp_path / "data", tmp_path / "copy")
            assert not (tmp_path / "data" / BOOT_NOTE).exists()
        assert (tmp_path / "data" / CLEAN_SHUTDOWN).exists()
        with open_data(tmp_path / "data") as directory:
            assert not directory.lost_tail
        for _ in range(2):  # no boot was noted
            with open_data(crashed) as directory:
                directory.open_all()
                assert directory.lost_tail

    def test_clean_shutdown_by_another_program_hides_no_loss(self, tmp_path: Path, machine: Machine) -> None:
        with used(tmp_path / "data"):
            crashed = left_by_kill(tmp_path / "data", tmp_path / "copy")
        machine.reboot()
        with open_data(crashed, in_cluster=False) as directory:
            directory.open_all()
        assert (crashed / CLEAN_SHUTDOWN).exists()
        with open_data(crashed) as directory:
            assert directory.lost_tail

    def test_unknown_boot_id_counts_as_a_loss(
        self, tmp_path: Path, machine: Machine, caplog: pytest.LogCaptureFixture
    ) -> None:
        machine.hide()
        with used(tmp_path / "data") as directory:
            assert not directory.lost_tail
            crashed = left_by_kill(tmp_path / "data", tmp_path / "copy")
        with open_data(crashed) as directory:
            assert directory.lost_tail
        assert "can't be read" in caplog.text
        with open_data(tmp_path / "data") as directory:
            assert not directory.lost_tail

    def test_note_that_can_not_be_written_is_an_error(self, tmp_path: Path, machine: Machine) -> None:
        (tmp_path / "data" / f"{BOOT_NOTE}.tmp").mkdir(parents=True)
        with pytest.raises(StorageError, match="can't be opened"):
            open_data(tmp_path / "data")
        open_data(tmp_path / "data", in_cluster=False).close()


class TestSetAside:
    def test_partition_is_renamed_and_its_records_stay(self, tmp_path: Path) -> None:
        with used(tmp_path / "data") as directory:
            log = directory.log(*PARTITION)
            directory.high_watermarks.update({PARTITION: 1})
            log.save_recovery_point()
            stray = directory.set_aside(*PARTITION)
            assert stray is not None
            assert re.fullmatch(r"orders-0\.[0-9a-f]{32}-stray", stray.name)
            assert log.is_closed
            assert directory.partitions() == []
            for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
                assert (tmp_path / "data" / name).read_text() == "0\n0\n"
            assert offsets_of(directory.log(*PARTITION)) == []
            assert directory.set_aside("missing", 0) is None
        with open_data(tmp_path / "data") as directory:
            directory.turn()
            assert directory.partitions() == [PARTITION]
        assert (stray / f"{0:020d}.log").stat().st_size == len(batch_of(1))
        stray.rename(tmp_path / "data" / "back-0")
        with open_data(tmp_path / "data") as directory:
            assert offsets_of(directory.log("back", 0)) == [0]

    def test_new_name_is_durable(self, tmp_path: Path) -> None:
        disk = FaultyDisk(tmp_path / "live")
        with open_data(tmp_path / "live", disk=disk) as directory:
            directory.log(*PARTITION).append(batch_of(1))
            directory.set_aside(*PARTITION)
            disk.durable_image(tmp_path / "image")
        with open_data(tmp_path / "image") as directory:
            assert directory.partitions() == []
        assert [path.name for path in (tmp_path / "image").glob("*-stray/*.log")] == [f"{0:020d}.log"]
        disk.forget()

    def test_partition_that_is_not_open_is_set_aside_unopened(self, tmp_path: Path) -> None:
        used(tmp_path / "data").close()
        with open_data(tmp_path / "data") as directory:
            assert directory.set_aside(*PARTITION) is not None
        assert (tmp_path / "data" / CLEAN_SHUTDOWN).exists()

    def test_log_that_fails_to_close_is_set_aside_all_the_same(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Failing(Disk):
            fails = False

            def sync(self, fd: int) -> None:
                if self.fails:
                    raise OSError(5, "Input/output error")
                super().sync(fd)

        disk = Failing()
        with open_data(tmp_path / "data", disk=disk) as directory:
            directory.log(*PARTITION).append(batch_of(1))
            disk.fails = True
            with caplog.at_level(logging.WARNING):
                assert directory.set_aside(*PARTITION) is not None
            disk.fails = False
        assert "could not be closed in order" in caplog.text

    def test_failed_rename_keeps_the_partition(self, tmp_path: Path) -> None:
        class Stuck(Disk):
            def rename(self, source: Path, target: Path) -> None:
                if target.name.endswith("-stray"):
                    raise OSError(5, "Input/output error")
                super().rename(source, target)

        with open_data(tmp_path / "data", disk=Stuck()) as directory:
            directory.log(*PARTITION).append(batch_of(1))
            with pytest.raises(StorageError, match="can't be set aside"):
                directory.set_aside(*PARTITION)
            assert offsets_of(directory.log(*PARTITION)) == [0]

    def test_closed_directory_sets_nothing_aside(self, tmp_path: Path) -> None:
        directory = used(tmp_path / "data")
        directory.close()
        with pytest.raises(LogClosedError):
            directory.set_aside(*PARTITION)

    @pytest.mark.parametrize("length", [1, 198, 210, 249])
    def test_names_of_long_topics_fit_and_are_recognised(self, length: int) -> None:
        """A deleted partition whose name is not recognised is never removed."""
        partition = Key("t" * length, 2**31 - 1)
        for name in (doomed_directory(partition, "a" * 32), stray_directory(partition, "a" * 32)):
            assert len(name) <= 255
            assert parse_partition_directory(name) is None
            assert is_doomed_directory(name) == name.endswith("-delete")


class TestTopicId:
    def test_topic_id_of_the_directory_is_returned(self, tmp_path: Path) -> None:
        topic_id = uuid.uuid4()
        with open_data(tmp_path / "data") as directory:
            assert directory.topic_id(*PARTITION) is None
            directory.log(*PARTITION, topic_id=topic_id)
            directory.log(*PARTITION, topic_id=uuid.uuid4())
            assert directory.topic_id(*PARTITION) == topic_id

    @pytest.mark.parametrize("content", [None, b"", b"version: 0\ntopic_id: short", b"\xff\xfe"])
    def test_file_that_a_power_cut_has_damaged_gives_no_id(self, tmp_path: Path, content: bytes | None) -> None:
        with used(tmp_path / "data") as directory:
            path = tmp_path / "data" / "orders-0" / "partition.metadata"
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            assert directory.topic_id(*PARTITION) is None

    @pytest.mark.parametrize("many", [False, True])
    def test_topic_id_of_a_new_partition_is_durable(self, tmp_path: Path, many: bool) -> None:
        """Without it, a topic that was deleted and created again could get the records of the old one."""
        topic_id = uuid.uuid4()
        disk = FaultyDisk(tmp_path / "live")
        with open_data(tmp_path / "live", disk=disk) as directory:
            if many:
                assert directory.make_all({PARTITION: topic_id}) == {}
            else:
                directory.log(*PARTITION, topic_id=topic_id)
            disk.durable_image(tmp_path / "image")
        with open_data(tmp_path / "image") as directory:
            assert directory.topic_id(*PARTITION) == topic_id
        disk.forget()
