"""Interrupts a run at each call of the disk, by an error, kill -9 or a power cut. Each group of segments is then the
old or the new one, the last value of each key is there, and the next run finishes."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.storage.disk import Disk
from tests.storage.compaction.crashing import EventfulLog, JournalingDisk
from tests.storage.compaction.keyed_log import KeyedLog
from tests.storage.faults.failing_calls import open_descriptors
from tests.storage.faults.failing_disk import FAULTS, FailingDisk


@pytest.fixture(autouse=True)
def no_log_records() -> Iterator[None]:
    """pytest keeps log records, and the errors in them keep files open."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def filled(scratch: Path) -> EventfulLog:
    """Built once; each test works on a copy."""
    with EventfulLog(scratch / "filled") as keyed:
        keyed.fill().expect_as_before()
        keyed.left_by_kill(scratch / "template")
    return keyed


def reopened(made: EventfulLog, path: Path, disk: Disk | None = None) -> EventfulLog:
    again = EventfulLog(path, disk)
    again.before, again.after = made.before, made.after
    return again


@pytest.mark.parametrize(
    ("fault", "length", "apart"), [*((fault, 1, 1) for fault in FAULTS), ("EIO", 3, 4), ("ENOSPC", 1000, 3)]
)
def test_failing_call_leaves_the_old_or_the_new_segments(
    scratch: Path,
    fault: str,
    length: int,
    apart: int,
) -> None:
    """Every call, or every few calls, fails alone or with some calls after it."""
    made = filled(scratch)
    descriptors = open_descriptors()
    nth = 1
    while _run_with_fault(made, scratch, fault, nth, length):
        nth += apart
    assert nth > 5 * apart
    assert open_descriptors() == descriptors, "descriptors stay open"


def _run_with_fault(made: EventfulLog, scratch: Path, fault: str, nth: int, length: int) -> bool:
    """Return True if the fault occurred."""
    disk = FailingDisk()
    path, killed = scratch / "run", scratch / "killed"
    shutil.copytree(scratch / "template", path)
    keyed = reopened(made, path, disk)
    try:
        disk.arm(fault, nth, length)
        keyed.directory.cleaner.turn()
        aside = keyed.directory.cleaner.set_aside()
        disk.heal()
        made.check(keyed)
        assert not aside or any(word in str(aside) for word in ("space", "Input/output", "many open files"))
        keyed.left_by_kill(killed)
        with KeyedLog(killed) as recovered:
            made.check_goes_on(recovered)
        if nth % 5 == 0:  # and in the same process
            made.check_goes_on(keyed)
    except AssertionError as error:
        raise AssertionError(f"{fault} at call {nth}, {disk.struck}: {error}") from error
    finally:
        disk.heal()
        keyed.directory.close()
    shutil.rmtree(killed)
    shutil.rmtree(path)
    return bool(disk.struck)


def test_power_cut_at_each_call_leaves_the_old_or_the_new_segments(scratch: Path) -> None:
    live = scratch / "live"
    disk = JournalingDisk(live)
    keyed = EventfulLog(live, disk)
    keyed.fill().expect_as_before()
    rng = random.Random(5)
    images = 0

    def cut_power() -> None:
        nonlocal images
        for number in range(2):
            images += 1
            image = scratch / f"image-{images}"
            if number:
                disk.crash_image(rng, image)
            else:
                disk.durable_image(image)
            with KeyedLog(image) as recovered:
                keyed.check(recovered)
            with KeyedLog(image) as recovered:  # after a clean close
                keyed.check_goes_on(recovered)
            shutil.rmtree(image)

    disk.on_call = cut_power
    try:
        assert keyed.directory.cleaner.turn() is not None
        cut_power()
        keyed.directory.turn()  # removes the old files
        cut_power()
    finally:
        disk.on_call = None
        keyed.directory.close()
        disk.forget()
    assert images > 40


def test_kill_before_each_call_leaves_the_old_or_the_new_segments(scratch: Path) -> None:
    made = filled(scratch)
    live = scratch / "live"
    shutil.copytree(scratch / "template", live)
    disk = JournalingDisk(live)
    keyed = reopened(made, live, disk)
    count = 0

    def kill() -> None:
        nonlocal count
        count += 1
        with KeyedLog(keyed.left_by_kill(scratch / f"killed-{count}")) as recovered:
            made.check_goes_on(recovered)
        shutil.rmtree(scratch / f"killed-{count}")

    disk.on_call = kill
    try:
        assert keyed.directory.cleaner.turn() is not None
    finally:
        disk.on_call = None
        keyed.directory.close()
        disk.forget()
    assert count > 20
