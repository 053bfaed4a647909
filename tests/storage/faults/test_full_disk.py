"""A full disk: a small file system in memory that is filled up.

The mount is in a namespace of its own (unshare), which needs no privileges on most systems, and disappears with the
process. If the system does not permit it, the test is skipped with a message.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

_UNSHARE = ["unshare", "--map-root-user", "--mount", "--", "sh", "-c"]


def test_full_disk_is_an_error_without_a_crash(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=3m tmpfs {shlex.quote(str(tmp_path))}"
    try:
        permitted = subprocess.run([*_UNSHARE, mount], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare command to mount a small file system with")
    if permitted.returncode:
        pytest.skip(f"mounting a small file system is not permitted here: {permitted.stderr.strip()}")
    program = shlex.join([sys.executable, "-m", "tests.storage.faults.full_disk", str(tmp_path), "1"])
    done = subprocess.run(
        [*_UNSHARE, f"{mount} && exec {program}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parents[3],
        env=os.environ,
    )
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"exit code {done.returncode} at {last}: {done.stderr[-2000:]}"
