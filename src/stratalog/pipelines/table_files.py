"""The files of a table, by paths relative to it: on this machine's file systems, or through Hadoop on any that Spark
knows (hdfs, s3a, gs, abfs). Few operations, each safe to do again after a crash."""

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
        """As Spark takes it."""

    def place(self, path: str) -> str:
        """Where that is, for people."""

    def beside(self) -> str | None:
        """A folder next to the table, by its path from the table; None where there can be none from which a file is
        moved into the table: the table is a bucket or a disk, or the folder above it can't be written to."""

    def exists(self, path: str) -> bool:
        """A file or a folder."""

    def files(self, folder: str) -> list[TableFile]:
        """All in a folder and below, sorted; none where it is not there. Hidden ones (._) are left out."""

    def make_folder(self, folder: str) -> None:
        """And those above it; fine where it is there. Raises StorageError where that can't be."""

    def folders(self, folder: str) -> list[str]:
        """The names of those in a folder; none where it is not there."""

    def read(self, path: str) -> bytes | None:
        """None where there is no such file."""

    def create(self, path: str, content: bytes) -> None:
        """Whole and durable, or not at all. Raises FileExistsError where the name is taken."""

    def move(self, source: str, target: str) -> None:
        """Fine where it is done already."""

    def delete(self, path: str) -> None:
        """A file or a folder with all in it; fine where it is gone."""


class LocalFiles:
    def __init__(self, root: Path) -> None:
        # Without links: Spark takes `..` for the folder above in the path's text, Linux for the one above on the disk.
        self._root = root.resolve()

    @property
    def root(self) -> str:
        return self._root.as_uri()

    def place(self, path: str) -> str:
        return str(self._at(path))

    def _at(self, path: str) -> Path:
        return Path(os.path.normpath(self._root / path))  # Linux finds no way back up from a folder that is not there

    def beside(self) -> str | None:
        above = self._root.parent
        if not self._root.name or self._root.is_mount():
            return None
        found = above / _beside(self._root.name)
        while not above.exists():
            above = above.parent
        return f"../{found.name}" if found.exists() or os.access(above, os.W_OK | os.X_OK) else None

    def exists(self, path: str) -> bool:
        return self._at(path).exists()

    def files(self, folder: str) -> list[TableFile]:
        found = []
        top = self._at(folder)
        for directory, folders, files in os.walk(top):
            folders[:] = [name for name in folders if not _is_hidden(name)]
            for name in files:
                path = Path(directory, name)
                if not _is_hidden(name):
                    below = str(path.relative_to(top))
                    found.append(TableFile(f"{folder}/{below}" if folder else below, path.stat().st_size))
        return sorted(found)

    def make_folder(self, folder: str) -> None:
        path = self._at(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
            reason = "" if os.access(path, os.W_OK | os.X_OK) else "permission denied"
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        if reason:
            raise StorageError(f"{path}: can't be written to ({reason}); give another folder, or see to its rights")

    def folders(self, folder: str) -> list[str]:
        try:
            return sorted(entry.name for entry in self._at(folder).iterdir() if entry.is_dir())
        except FileNotFoundError:
            return []

    def read(self, path: str) -> bytes | None:
        try:
            return self._at(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, path: str, content: bytes) -> None:
        target = self._at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        written = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with written.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(written, target)  # unlike a rename, it fails where the name is taken
            _sync(target.parent)
        finally:
            written.unlink(missing_ok=True)

    def move(self, source: str, target: str) -> None:
        wanted = self._at(target)
        wanted.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._at(source).rename(wanted)
        except FileNotFoundError:
            if not wanted.exists():
                raise
        _sync(wanted.parent)

    def delete(self, path: str) -> None:
        doomed = self._at(path)
        if doomed.is_dir():
            shutil.rmtree(doomed, ignore_errors=True)
        else:
            doomed.unlink(missing_ok=True)


class HadoopFiles:
    """Through the driver's JVM. On object stores a rename is a copy, and `create` relies on nobody else's luck: two
    exports of one table at the same time are only told apart where the store refuses to rename onto a name."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._jvm: Any = spark._jvm
        self._root = root.rstrip("/")
        self._system: Any = self._file_system(spark._jsc.hadoopConfiguration())

    @property
    def root(self) -> str:
        return self._root

    def place(self, path: str) -> str:
        return str(self._path(path).toString())

    def beside(self) -> str | None:
        root = self._path("")
        is_below_another = root.getParent() is not None and not root.getParent().isRoot()
        return f"../{_beside(root.getName())}" if is_below_another else None

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path(path)))

    def _file_system(self, configuration: Any) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return self._path("").getFileSystem(configuration)
        except Py4JJavaError as error:
            raise ConfigError(
                f"{self._root}: Spark has no file system for this address ({first_line(error)}); start it with the "
                "package that has, like spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION for s3a (--conf)"
            ) from error

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{path}" if path else self._root)

    def files(self, folder: str) -> list[TableFile]:
        found = []
        waiting = [folder]
        while waiting:
            inside = waiting.pop()
            if not self._system.exists(self._path(inside)):
                continue
            for status in self._system.listStatus(self._path(inside)):
                name = status.getPath().getName()
                path = f"{inside}/{name}" if inside else name
                if _is_hidden(name):
                    continue
                if status.isDirectory():
                    waiting.append(path)
                else:
                    found.append(TableFile(path, status.getLen()))
        return sorted(found)

    def make_folder(self, folder: str) -> None:
        from py4j.protocol import Py4JJavaError

        try:
            self._system.mkdirs(self._path(folder))
        except Py4JJavaError as error:
            reason = first_line(error)
            raise StorageError(f"{self._root}/{folder}: can't be written to ({reason}); give another folder") from error

    def folders(self, folder: str) -> list[str]:
        if not self._system.exists(self._path(folder)):
            return []
        found = self._system.listStatus(self._path(folder))
        return sorted(status.getPath().getName() for status in found if status.isDirectory())

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
    """For a path or an address like s3a://bucket/table; one without a scheme is meant as Spark means it."""
    address = urlsplit(table)
    if address.scheme == "file":
        return LocalFiles(Path(unquote(address.path)))
    if not address.scheme:
        default = str(spark._jsc.hadoopConfiguration().get("fs.defaultFS") or "file:///")
        return LocalFiles(Path(table).expanduser()) if default.startswith("file:") else HadoopFiles(spark, table)
    return HadoopFiles(spark, table)


def absolute_path(spark: SparkSession, path: str) -> str:
    """A path of this machine from here on, and not from where Java was started; others as they are."""
    files = table_files(spark, path)
    return path if isinstance(files, HadoopFiles) or urlsplit(path).scheme else str(Path(path).expanduser().absolute())


def _beside(name: str) -> str:
    """Hidden, so that readers of all tables of a folder pass it by."""
    return f".{name}.stratalog"


def _is_hidden(name: str) -> bool:
    """What Spark does not look at when it reads a table."""
    return name.startswith((".", "_"))


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
