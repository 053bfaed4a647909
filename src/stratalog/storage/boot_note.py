"""Notes in a data directory which boot of the machine uses it, so that the next start knows whether a log may have lost
its end.

kill -9 of the process loses nothing: the kernel has what was written. Only a machine that goes down loses what was not
synced. So the note names the kernel's boot id, and a clean shutdown removes it. A note of another boot means that the
machine went down. The loss stays noted until forget_loss() is called, because the process may be killed again before
the loss is reported.
"""

from __future__ import annotations

import logging
from pathlib import Path

from stratalog.storage import names
from stratalog.storage.disk import Disk

logger = logging.getLogger(__name__)

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_LOST = "lost"


class BootNote:
    """The note of one data directory. A missing note of a directory that has logs counts as a loss, unless the last
    shutdown was clean."""

    def __init__(self, disk: Disk, directory: Path, *, was_clean: bool, has_logs: bool) -> None:
        """Read the note, and write it if nothing was lost. Raises OSError."""
        self._disk = disk
        self._path = directory / names.BOOT_NOTE
        noted = self._read()
        boot_id = _boot_id()
        self.is_lost = (has_logs and not was_clean) if noted is None else noted != boot_id or not boot_id
        if self.is_lost:
            if noted is None:
                self._write(_LOST)
        elif noted is None:
            self._write(boot_id)

    def forget_loss(self) -> None:
        """Note the current boot: the loss is reported to the other brokers. Raises OSError."""
        if self.is_lost:
            self._write(_boot_id())
            self.is_lost = False

    def remove(self) -> None:
        """Remove the note at a clean shutdown, unless a loss is not yet reported. The caller then syncs the directory.
        Raises OSError."""
        if not self.is_lost:
            self._disk.remove(self._path)

    def _read(self) -> str | None:
        try:
            return self._path.read_bytes().decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None

    def _write(self, content: str) -> None:
        self._disk.replace(self._path, f"{content}\n".encode())


def _boot_id() -> str:
    """Return the kernel's boot id, or "" if it is unknown: then every stop that is not clean counts as a loss."""
    try:
        return BOOT_ID_FILE.read_text().strip()
    except OSError as error:
        logger.warning("%s: can't be read, so the end of every log counts as lost: %s", BOOT_ID_FILE, error)
        return ""
