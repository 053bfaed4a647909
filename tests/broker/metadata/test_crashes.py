"""A broker that is killed, or whose disk fails, at any step of a change: the next broker finds the old or the new
state."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.broker.background import finish
from stratalog.broker.metadata.topics import RequestedTopic
from stratalog.errors import StorageError, StratalogError
from stratalog.storage.checkpoints import read_partition_metadata
from tests.broker.metadata.registry_lab import Broker, QuickDisk, die_at_each_call, killed
from tests.storage.faults.failing_disk import FailingDisk
from tests.storage.faults.faulty_disk import FaultyDisk


def made(data: Path) -> Path:
    """Create two topics in a data directory, which may have others already."""
    with Broker(data) as broker:
        broker.topics.create("kept", 1, {"retention.ms": "1000"})
        broker.topics.create("orders", 2, {})
        broker.append("kept")
        broker.append("orders", 1)
    return data


def copy(template: Path, data: Path) -> Path:
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(template, data)
    return data


def check_kept(broker: Broker) -> None:
    assert broker.count("kept") == 1
    topic = broker.topics.get("kept")
    assert topic is not None
    assert topic.settings == {"retention.ms": "1000"}


class TestKilled:
    def run(
        self, data: Path, change: Callable[[Broker], object], before: dict[str, int], after: dict[str, int]
    ) -> set[str]:
        outcomes = []

        def look(broker: Broker, left: Path) -> None:
            check_kept(broker)
            assert broker.shape == broker.on_disk
            assert broker.shape in (before, after)
            outcomes.append("new" if broker.shape == after else "old")
            assert not list(left.glob("*-delete"))

        calls = die_at_each_call(made(data), change, look)
        assert calls > 5
        assert outcomes == sorted(outcomes, reverse=True)  # the old state, and from some step on always the new one
        assert outcomes[-1] == "new"
        return set(outcomes)

    def test_kill_during_creation_leaves_no_topic_or_a_whole_topic(self, scratch: Path) -> None:
        before = {"kept": 1, "orders": 2}
        after = {**before, "fresh": 2}
        seen = self.run(scratch / "data", lambda broker: broker.topics.create("fresh", 2, {}), before, after)
        assert seen == {"old", "new"}

    def test_kill_during_deletion_leaves_no_topic_or_a_whole_topic(self, scratch: Path) -> None:
        before = {"kept": 1, "orders": 2}
        seen = self.run(scratch / "data", lambda broker: broker.topics.delete("orders"), before, {"kept": 1})
        assert seen == {"old", "new"}

    def test_kill_during_creation_leaves_all_topics_or_none(self, scratch: Path) -> None:
        before = {"kept": 1, "orders": 2}
        after = {**before, "fresh": 2, "newer": 1, "newest": 3}
        seen = self.run(scratch / "data", create_many, before, after)
        assert seen == {"old", "new"}

    def test_kill_during_deletion_leaves_all_topics_or_none(self, scratch: Path) -> None:
        data = scratch / "data"
        with Broker(data) as broker:
            create_many(broker)
        before = {"kept": 1, "orders": 2, "fresh": 2, "newer": 1, "newest": 3}
        seen = self.run(data, delete_many, before, {"kept": 1})
        assert seen == {"old", "new"}

    def test_kill_during_growth_leaves_old_or_new_number_of_partitions(self, scratch: Path) -> None:
        before = {"kept": 1, "orders": 2}
        after = {"kept": 1, "orders": 4}
        self.run(scratch / "data", lambda broker: broker.topics.add_partitions("orders", 4), before, after)

    def test_kill_during_alteration_leaves_old_or_new_settings(self, scratch: Path) -> None:
        seen = []

        def look(broker: Broker, left: Path) -> None:
            check_kept(broker)
            orders = broker.topics.get("orders")
            assert orders is not None
            seen.append(dict(orders.settings))

        die_at_each_call(
            made(scratch / "data"),
            lambda broker: broker.topics.alter_settings("orders", {"segment.bytes": "5000"}),
            look,
        )
        assert {} in seen
        assert seen[-1] == {"segment.bytes": "5000"}


NEW_TOPICS = {"fresh": 2, "newer": 1, "newest": 3}


def create_many(broker: Broker) -> None:
    new = [RequestedTopic(name, count, {}) for name, count in NEW_TOPICS.items()]
    for outcome in finish(broker.topics.create_all(new)):
        if isinstance(outcome, StratalogError):
            raise outcome


def delete_many(broker: Broker) -> None:
    doomed = [topic.name for topic in broker.topics.all() if topic.name != "kept"]
    for failure in broker.topics.delete_all([(name, None) for name in doomed]):
        if failure is not None:
            raise failure


CHANGES: dict[str, tuple[Callable[[Broker], object], dict[str, int]]] = {
    "create": (lambda broker: broker.topics.create("fresh", 2, {}), {"kept": 1, "orders": 2, "fresh": 2}),
    "delete": (lambda broker: broker.topics.delete("orders"), {"kept": 1}),
    "add": (lambda broker: broker.topics.add_partitions("orders", 4), {"kept": 1, "orders": 4}),
    "alter": (
        lambda broker: broker.topics.alter_settings("orders", {"retention.ms": "5"}),
        {"kept": 1, "orders": 2},
    ),
}


@pytest.mark.parametrize("length", [1, 1000])
@pytest.mark.parametrize("change", CHANGES)
def test_failing_disk_leaves_the_old_or_the_new_state(scratch: Path, change: str, length: int) -> None:
    """The disk fails one call, or all calls from then on, so that undoing fails too. The next broker finds the old or
    the new state. Once the disk works again, the same call succeeds."""
    call, after = CHANGES[change]
    template = made(scratch / "template")
    for nth in range(1, 1000):
        data = copy(template, scratch / "data")
        disk = FailingDisk()
        with Broker(data, disk=disk) as broker:
            before = broker.shape
            disk.arm("EIO", nth, length)
            try:
                call(broker)
            except StorageError:
                seen = before
            else:
                seen = after
            struck = bool(disk.struck)
            disk.heal()
            assert broker.shape == seen
            check_restart(killed(broker, scratch / f"killed-{nth}"), before, after)
            broker.topics.create("other", 1, {})  # saves the metadata, leftovers included
            assert broker.shape == {**seen, "other": 1}
            if seen == before != after:
                call(broker)
            broker.topics.delete("other")
            assert broker.shape == after
            check_kept(broker)
        check_restart(data, after, after)
        if not struck:
            assert nth > 3
            return
    raise AssertionError("the disk never stops failing")


class StubbornDisk(QuickDisk):
    """Can't create a directory of this name, and can't rename anything while `stuck`."""

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.stuck = False

    def make_directory(self, path: Path) -> None:
        if path.name == self.refused:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        if self.stuck and target.name.endswith("-delete"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))
        super().rename(source, target)


@pytest.mark.parametrize(("change", "refused"), [("create", "fresh-1"), ("add", "orders-3")])
def test_refused_change_is_not_there_after_a_restart(scratch: Path, change: str, refused: str) -> None:
    call, _ = CHANGES[change]
    with Broker(made(scratch / "data"), disk=StubbornDisk(refused)) as broker:
        before = broker.shape
        with pytest.raises(StorageError):
            call(broker)
        assert broker.on_disk == before
        check_restart(killed(broker, scratch / "killed"), before)


def test_leftovers_of_a_topic_are_removed_when_its_name_is_used_again(scratch: Path) -> None:
    data = made(scratch / "data")
    disk = StubbornDisk("fresh-2")
    with Broker(data, disk=disk) as broker:
        disk.stuck = True
        with pytest.raises(StorageError):
            broker.topics.create("fresh", 3, {})
        assert broker.on_disk["fresh"] == 2
        assert broker.topics.get("fresh") is None
        with pytest.raises(StorageError):
            broker.topics.create("fresh", 1, {})
        disk.stuck = False
        topic = broker.topics.create("fresh", 1, {})
        assert broker.on_disk["fresh"] == 1
        assert read_partition_metadata(data / "fresh-0" / "partition.metadata") == topic.id


def test_topic_is_deleted_even_if_its_files_can_not_be_removed(scratch: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = made(scratch / "data")
    disk = StubbornDisk("")
    with Broker(data, disk=disk) as broker:
        disk.stuck = True
        broker.topics.delete("orders")
        assert "some of its files could not be removed" in caplog.text
        assert broker.on_disk == {"kept": 1, "orders": 2}
        assert broker.shape == {"kept": 1}
    stuck = StubbornDisk("")
    stuck.stuck = True
    with Broker(copy(data, scratch / "stuck"), disk=stuck) as broker:
        assert broker.shape == {"kept": 1}
        stuck.stuck = False
        broker.topics.create("orders", 1, {})
        assert broker.shape == broker.on_disk == {"kept": 1, "orders": 1}
        assert broker.count("orders") == 0
    check_restart(data, {"kept": 1})


def check_restart(data: Path, *shapes: dict[str, int]) -> None:
    with Broker(data) as broker:
        assert broker.shape == broker.on_disk
        assert broker.shape in shapes
        check_kept(broker)


def durable_disk(data: Path) -> FaultyDisk:
    """Return a disk on which everything in `data` is durable."""
    disk = FaultyDisk(data)
    for path in (data, *(each for each in data.iterdir() if each.is_dir())):
        disk.sync_directory(path)
    for path in data.rglob("*.*"):
        if path.is_file():
            fd = disk.open(path)
            disk.sync(fd)
            disk.close(fd)
    return disk


MANY: dict[str, tuple[Callable[[Broker], object], dict[str, int]]] = {
    "create many": (create_many, {"kept": 1, "orders": 2, **NEW_TOPICS}),
    "delete many": (delete_many, {"kept": 1}),
}


@pytest.mark.parametrize("change", [*CHANGES, *MANY])
def test_changes_survive_a_power_cut(scratch: Path, change: str) -> None:
    call, after = (CHANGES | MANY)[change]
    template = made(scratch / "template")
    for seed in range(10):
        data = copy(template, scratch / "data")
        disk = durable_disk(data)
        with Broker(data, disk=disk) as broker:
            call(broker)
            image = scratch / f"image-{seed}"
            if seed:
                disk.crash_image(random.Random(seed), image)
            else:
                disk.durable_image(image)
        disk.forget()
        with Broker(image) as broker:
            assert broker.shape == broker.on_disk == after
            assert "kept" in broker.shape
            check_ids(broker)


@pytest.mark.parametrize("change", [*CHANGES, *MANY])
def test_power_cut_leaves_the_old_or_the_new_state(scratch: Path, change: str) -> None:
    call, after = (CHANGES | MANY)[change]
    data = made(scratch / "data")
    if change == "delete many":
        with Broker(data) as broker:
            create_many(broker)
    disk = durable_disk(data)
    images: list[Path] = []

    def cut() -> None:
        images.append(scratch / f"image-{len(images)}")
        on_call, disk.on_call = disk.on_call, None  # calls of the image don't count as steps
        disk.crash_image(random.Random(len(images)), images[-1])
        disk.on_call = on_call

    with Broker(data, disk=disk) as broker:
        before = broker.shape
        disk.on_call = cut
        call(broker)
        disk.on_call = None
    disk.forget()
    seen = []
    for image in images:
        with Broker(image) as broker:
            assert broker.shape == broker.on_disk
            check_kept(broker)
            check_ids(broker)
            seen.append(broker.shape)
    assert all(shape in (before, after) for shape in seen)
    assert seen[0] == before
    assert seen[-1] == after


def check_ids(broker: Broker) -> None:
    for topic in broker.topics.all():
        for index in range(topic.partition_count):
            assert read_partition_metadata(broker.data / f"{topic.name}-{index}" / "partition.metadata") == topic.id


def test_flushed_records_of_topics_created_together_survive_a_power_cut(scratch: Path) -> None:
    data = made(scratch / "data")
    disk = durable_disk(data)
    image = scratch / "image"
    with Broker(data, disk=disk) as broker:
        create_many(broker)
        for name, count in NEW_TOPICS.items():
            broker.append(name, count - 1)
            broker.topics.partitions(name)[count - 1].log.flush()
        disk.durable_image(image)
    disk.forget()
    with Broker(image) as broker:
        assert [broker.count(name, count - 1) for name, count in NEW_TOPICS.items()] == [1, 1, 1]


def test_new_topic_has_no_records_of_a_deleted_one_after_a_power_cut(scratch: Path) -> None:
    data = made(scratch / "data")
    for seed in range(10):
        disk = durable_disk(copy(data, scratch / "copy"))
        with Broker(scratch / "copy", disk=disk) as broker:
            delete_many(broker)
            topic = broker.topics.create("orders", 2, {})
            disk.crash_image(random.Random(seed), scratch / f"image-{seed}")
        disk.forget()
        with Broker(scratch / f"image-{seed}") as broker:
            assert broker.shape == {"kept": 1, "orders": 2}
            assert broker.topics.get("orders") == topic
            assert (broker.count("orders", 0), broker.count("orders", 1)) == (0, 0)
