from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.errors import DirectoryLockedError
from stratalog.storage.directory_lock import DirectoryLock

HOLD = """
import sys
from pathlib import Path
from stratalog.storage.directory_lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""
KAFKAS_WAY = """
import fcntl, sys
file = open(sys.argv[1] + "/.lock", "r+")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
sys.stdin.read()
"""


def test_second_holder_in_this_process_is_refused(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryLockedError, match="is already open in this process"):
        DirectoryLock(tmp_path / "." / ".." / tmp_path.name)
    lock.release()
    lock.release()
    DirectoryLock(tmp_path).release()


def test_symlink_to_the_same_directory_is_the_same_directory(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    lock = DirectoryLock(tmp_path / "data")
    with pytest.raises(DirectoryLockedError):
        DirectoryLock(tmp_path / "link")
    lock.release()


@pytest.mark.parametrize("program", [HOLD, KAFKAS_WAY], ids=["ours", "as Kafka does it"])
def test_directory_of_another_process_is_refused_until_it_ends(tmp_path: Path, program: str) -> None:
    (tmp_path / ".lock").touch()
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(DirectoryLockedError, match="another process has this data directory open"):
            DirectoryLock(tmp_path)
        holder.kill()
        holder.wait()
    DirectoryLock(tmp_path).release()


def test_lock_file_left_by_a_crash_does_not_prevent_opening(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(b"")
    lock = DirectoryLock(tmp_path)
    with (tmp_path / ".other").open("w") as other:  # another file is not locked
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.release()
    assert (tmp_path / ".lock").exists()
