"""The files of a table, by paths relative to it: in a local file system, or through Hadoop in any that Spark supports
(hdfs, s3a, gs, abfs). Each operation can be repeated after a crash."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from stratalog.errors import ConfigError, StorageError
from stratalog.pipelines.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TableFile(NamedTuple):
    path: str
    size: int


class TableFiles(Protocol):
    @property
    def root(self) -> str:
        """The table's address, as Spark expects it."""

    def display_path(self, path: str) -> str:
        """Return the absolute path, for messages."""

    def sibling(self) -> str | None:
        """Return the path of the state folder next to the table, relative to the table. Return None if files can't be
        moved from there into the table: the table is a bucket or a mount point, or the folder above is not writable."""

    def exists(self, path: str) -> bool:
        """Return whether there is such a file or folder."""

    def files(self, folder: str) -> list[TableFile]:
        """Return all files in a folder and below it, sorted, without hidden ones (. or _). A folder that does not exist
        has none."""

    def make_folder(self, folder: str) -> None:
        """Create a folder and its parents if they are missing. Raises StorageError if it is not writable."""

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder. A folder that does not exist has none."""

    def read(self, path: str) -> bytes | None:
        """Return the content, or None if there is no such file."""

    def create(self, path: str, content: bytes) -> None:
        """Create a file atomically and durably. Raises FileExistsError if it exists."""

    def move(self, source: str, target: str) -> None:
        """Move a file. A move that is already done succeeds."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its content. It may be missing."""


class LocalFiles:
    def __init__(self, root: Path) -> None:
        # Without symbolic links: Spark resolves `..` in the path's text, Linux on the disk.
        self._root = root.resolve()

    @property
    def root(self) -> str:
        return self._root.as_uri()

    def display_path(self, path: str) -> str:
        return str(self._absolute(path))

    def _absolute(self, path: str) -> Path:
        return Path(os.path.normpath(self._root / path))  # Linux can't resolve `..` after a folder that does not exist

    def sibling(self) -> str | None:
        parent = self._root.parent
        if not self._root.name or self._root.is_mount():
            return None
        sibling = parent / _sibling_name(self._root.name)
        while not parent.exists():
            parent = parent.parent
        return f"../{sibling.name}" if sibling.exists() or os.access(parent, os.W_OK | os.X_OK) else None

    def exists(self, path: str) -> bool:
        return self._absolute(path).exists()

    def files(self, folder: str) -> list[TableFile]:
        listed = []
        top = self._absolute(folder)
        for directory, folders, files in os.walk(top):
            folders[:] = [name for name in folders if not _is_hidden(name)]
            for name in files:
                path = Path(directory, name)
                if not _is_hidden(name):
                    below = str(path.relative_to(top))
                    listed.append(TableFile(f"{folder}/{below}" if folder else below, path.stat().st_size))
        return sorted(listed)

    def make_folder(self, folder: str) -> None:
        path = self._absolute(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
            reason = "" if os.access(path, os.W_OK | os.X_OK) else "permission denied"
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        if reason:
            raise StorageError(f"{path}: is not writable ({reason}); name another folder, or fix its permissions")

    def folders(self, folder: str) -> list[str]:
        try:
            return sorted(entry.name for entry in self._absolute(folder).iterdir() if entry.is_dir())
        except FileNotFoundError:
            return []

    def read(self, path: str) -> bytes | None:
        try:
            return self._absolute(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, path: str, content: bytes) -> None:
        target = self._absolute(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        written = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with written.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(written, target)  # unlike a rename, this fails if the target exists
            _sync(target.parent)
        finally:
            written.unlink(missing_ok=True)

    def move(self, source: str, target: str) -> None:
        destination = self._absolute(target)
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._absolute(source).rename(destination)
        except FileNotFoundError:
            if not destination.exists():
                raise
        _sync(destination.parent)

    def delete(self, path: str) -> None:
        doomed = self._absolute(path)
        if doomed.is_dir():
            shutil.rmtree(doomed, ignore_errors=True)
        else:
            doomed.unlink(missing_ok=True)


class HadoopFiles:
    """Files through the driver's JVM. In object stores a rename is a copy. `create` detects a second export of the same
    table only if the store refuses to rename onto an existing name."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._jvm: Any = spark._jvm
        self._root = root.rstrip("/")
        self._system: Any = self._file_system(spark._jsc.hadoopConfiguration())

    @property
    def root(self) -> str:
        return self._root

    def display_path(self, path: str) -> str:
        return str(self._path(path).toString())

    def sibling(self) -> str | None:
        root = self._path("")
        has_parent = root.getParent() is not None and not root.getParent().isRoot()
        return f"../{_sibling_name(root.getName())}" if has_parent else None

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path(path)))

    def _file_system(self, configuration: Any) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return self._path("").getFileSystem(configuration)
        except Py4JJavaError as error:
            raise ConfigError(
                f"{self._root}: Spark has no file system for this address ({first_line(error)}); start it with the "
                "package for it, such as spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION for s3a (--conf)"
            ) from error

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{path}" if path else self._root)

    def files(self, folder: str) -> list[TableFile]:
        listed = []
        pending = [folder]
        while pending:
            parent = pending.pop()
            if not self._system.exists(self._path(parent)):
                continue
            for status in self._system.listStatus(self._path(parent)):
                name = status.getPath().getName()
                path = f"{parent}/{name}" if parent else name
                if _is_hidden(name):
                    continue
                if status.isDirectory():
                    pending.append(path)
                else:
                    listed.append(TableFile(path, status.getLen()))
        return sorted(listed)

    def make_folder(self, folder: str) -> None:
        from py4j.protocol import Py4JJavaError

        try:
            self._system.mkdirs(self._path(folder))
        except Py4JJavaError as error:
            reason = first_line(error)
            raise StorageError(f"{self._root}/{folder}: is not writable ({reason}); name another folder") from error

    def folders(self, folder: str) -> list[str]:
        if not self._system.exists(self._path(folder)):
            return []
        statuses = self._system.listStatus(self._path(folder))
        return sorted(status.getPath().getName() for status in statuses if status.isDirectory())

    def read(self, path: str) -> bytes | None:
        if not self._system.exists(self._path(path)):
            return None
        stream = self._system.open(self._path(path))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def create(self, path: str, content: bytes) -> None:
        folder, _, name = path.rpartition("/")
        written = self._path(f"{folder}/.{name}.{uuid.uuid4().hex}")
        stream = self._system.create(written, False)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()
        if self._system.exists(self._path(path)) or not self._system.rename(written, self._path(path)):
            self._system.delete(written, False)
            raise FileExistsError(f"{self._root}/{path}")

    def move(self, source: str, target: str) -> None:
        self._system.mkdirs(self._path(target).getParent())
        if self._system.exists(self._path(source)):
            self._system.rename(self._path(source), self._path(target))
        if not self._system.exists(self._path(target)):
            raise FileNotFoundError(f"{self._root}/{source}")

    def delete(self, path: str) -> None:
        self._system.delete(self._path(path), True)


def table_files(spark: SparkSession, table: str) -> TableFiles:
    """Return the files of a table at a path or an address like s3a://bucket/table. A path without a scheme belongs to
    Spark's default file system."""
    address = urlsplit(table)
    if address.scheme == "file":
        return LocalFiles(Path(unquote(address.path)))
    if not address.scheme:
        default = str(spark._jsc.hadoopConfiguration().get("fs.defaultFS") or "file:///")
        return LocalFiles(Path(table).expanduser()) if default.startswith("file:") else HadoopFiles(spark, table)
    return HadoopFiles(spark, table)


def absolute_path(spark: SparkSession, path: str) -> str:
    """Make a local path absolute, because Java may run in another directory. Other addresses stay as they are."""
    files = table_files(spark, path)
    return path if isinstance(files, HadoopFiles) or urlsplit(path).scheme else str(Path(path).expanduser().absolute())


def _sibling_name(name: str) -> str:
    """Return a hidden name, so that readers of all tables in a folder ignore it."""
    return f".{name}.stratalog"


def _is_hidden(name: str) -> bool:
    """Return whether Spark ignores the name when it reads a table."""
    return name.startswith((".", "_"))


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
