"""A disk that records what is durable, and can write the files that a power cut might leave.

All calls go to the real file system, except syncs: `sync` only records the content of the file. For a file, the content
at its last sync is durable, and for a directory, the names at its last sync_directory. `crash_image` mixes both states:
each block, each size and each name is as it was at the last sync, or as it is now.

A sync that fails (`fail_syncs`) behaves as on Linux: the error is returned once, and the dirty pages count as clean
from then on. A later sync succeeds without writing them, unless they were written to again.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

from stratalog.storage._mapping import Mapping
from stratalog.storage.disk import Disk
from stratalog.storage.names import LOCK

_PAGE = 4096
_SMALL_BLOCK = 64  # smaller than on any disk, so that the small logs of tests are torn often

Names = dict[str, "Inode | None"]  # None for a directory


class Inode:
    """A file, independent of its names. A descriptor of its own keeps it readable when it has no name any more."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)
        self.durable = b""
        self._dropped: dict[int, bytes] = {}  # the durable content of pages that a failed sync gave up

    def close(self) -> None:
        os.close(self._fd)

    def current(self) -> bytes:
        return os.pread(self._fd, os.fstat(self._fd).st_size, 0)

    def note_write(self, position: int, size: int) -> None:
        for page in range(position // _PAGE, (position + size - 1) // _PAGE + 1):
            self._dropped.pop(page, None)

    def sync(self) -> None:
        content = bytearray(self.current())
        for page, dropped in self._dropped.items():
            start = page * _PAGE
            if content[start : start + _PAGE] == dropped:
                lost = self.durable[start : start + len(dropped)]
                content[start : start + len(dropped)] = lost.ljust(len(dropped), b"\0")
        self.durable = bytes(content)

    def fail_sync(self) -> None:
        content = self.current()
        for page in range((len(content) + _PAGE - 1) // _PAGE):
            block = slice(page * _PAGE, (page + 1) * _PAGE)
            if content[block] != self.durable[block]:
                self._dropped[page] = content[block]


class FaultyDisk(Disk):
    """The recording disk. `on_call` is called before each call that changes something, where a power cut may happen."""

    waits_at_once = 1  # so that a seed always gives the same sequence of calls

    def __init__(self, root: Path) -> None:
        self._root = root
        self._inodes: dict[tuple[int, int], Inode] = {}
        self._durable_names: dict[Path, Names] = {}
        self.on_call: Callable[[], None] | None = None
        self.fail_syncs = 0
        self.syncs = 0

    def forget(self) -> None:
        """Close all descriptors. The disk can't be used afterwards."""
        for inode in self._inodes.values():
            inode.close()
        self._inodes.clear()

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:  # type: ignore[override]
        self._called()
        super().write(fd, data, position)
        self._inode(fd).note_write(position, len(data))

    def truncate(self, fd: int, size: int) -> None:
        self._called()
        super().truncate(fd, size)

    def allocate(self, fd: int, position: int, size: int) -> None:
        self._called()
        super().allocate(fd, position, size)

    def sync(self, fd: int) -> None:
        self._called()
        self._sync(self._inode(fd))

    def sync_mapping(self, mapping: Mapping, path: Path) -> None:
        self._called()
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return  # the file has no name any more, so durability does not matter
        try:
            self._sync(self._inode(fd))
        finally:
            os.close(fd)

    def _sync(self, inode: Inode) -> None:
        self.syncs += 1
        if self.fail_syncs:
            self.fail_syncs -= 1
            inode.fail_sync()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        inode.sync()

    def start_writeback(self, fd: int, position: int, size: int) -> None:
        pass  # makes nothing durable

    def sync_directory(self, path: Path) -> None:
        self._called()
        if not path.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._durable_names[path] = self._names(path)
        self._drop_unreachable()

    def make_directory(self, path: Path) -> None:
        self._called()
        if not path.exists():
            self._durable_names.pop(path, None)  # of an earlier directory with this name
        super().make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self._called()
        super().rename(source, target)
        if source in self._durable_names:  # a directory: the names in it are as durable as before
            self._durable_names[target] = self._durable_names[source]

    def remove(self, path: Path) -> None:
        self._called()
        super().remove(path)

    def crash_image(self, rng: random.Random, target: Path) -> None:
        """Write into `target` a state that the directory may have after a power cut at this moment."""
        leaning = rng.choice([0.0, 0.3, 0.6, 0.9, 1.0])  # the probability that a block, size or name is the current one
        block = rng.choice([_SMALL_BLOCK, 512, _PAGE])
        self._image(self._root, target, rng, leaning, block)

    def durable_image(self, target: Path) -> None:
        """Write into `target` the worst state: nothing that was not synced."""
        self._image(self._root, target, random.Random(0), 0.0, _PAGE)

    def _image(self, source: Path, target: Path, rng: random.Random, leaning: float, block: int) -> None:
        target.mkdir()
        current, durable = self._names(source), self._durable_names.get(source, {})
        for name in sorted({*current, *durable}):
            names = current if rng.random() < leaning else durable
            if name not in names or name == LOCK:
                continue
            inode = names[name]
            if inode is None:
                self._image(source / name, target / name, rng, leaning, block)
            else:
                (target / name).write_bytes(_mixture(inode.durable, inode.current(), rng, leaning, block))

    def _called(self) -> None:
        if self.on_call is not None:
            self.on_call()

    def _inode(self, fd: int) -> Inode:
        status = os.fstat(fd)
        key = (status.st_dev, status.st_ino)
        inode = self._inodes.get(key)
        if inode is None:
            inode = self._inodes[key] = Inode(fd)
        return inode

    def _names(self, path: Path) -> Names:
        names: Names = {}
        for entry in path.iterdir() if path.exists() else ():
            if entry.is_dir():
                names[entry.name] = None
            elif entry.name != LOCK:  # opening and closing it would release this process's lock
                fd = os.open(entry, os.O_RDONLY)
                names[entry.name] = self._inode(fd)
                os.close(fd)
        return names

    def _drop_unreachable(self) -> None:
        reachable = {inode for names in self._durable_names.values() for inode in names.values()}
        for path in self._durable_names:
            reachable.update(self._names(path).values())
        for key, inode in list(self._inodes.items()):
            if inode not in reachable:
                inode.close()
                del self._inodes[key]


def _mixture(durable: bytes, current: bytes, rng: random.Random, leaning: float, block: int) -> bytes:
    size = len(current) if rng.random() < max(leaning, 0.5 * (leaning > 0)) else len(durable)
    mixed = bytearray()
    for start in range(0, size, block):
        content = current if rng.random() < leaning else durable
        mixed += content[start : start + block].ljust(block, b"\0")  # a block that was never written has zeros
    return bytes(mixed[:size])
