"""Compaction on a full disk; see full_disk.py. It is mounted as in tests/storage/faults."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

_UNSHARE = ["unshare", "--map-root-user", "--mount", "--", "sh", "-c"]


def test_log_is_set_aside_on_a_full_disk_without_a_crash(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=3m tmpfs {shlex.quote(str(tmp_path))}"
    try:
        permitted = subprocess.run([*_UNSHARE, mount], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare command to mount a small file system with")
    if permitted.returncode:
        pytest.skip(f"mounting a small file system is not permitted here: {permitted.stderr.strip()}")
    program = shlex.join([sys.executable, "-m", "tests.storage.compaction.full_disk", str(tmp_path)])
    done = subprocess.run(
        [*_UNSHARE, f"{mount} && exec {program}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
