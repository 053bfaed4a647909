"""What has been exported to a table, and how a step of it becomes part of the table exactly once.

Data is written to a staging folder first. Then one small file in the folder `commits` says which staged files get which
names, which older files they replace, and up to which offsets the table goes: that file is the decision. After it the
files are moved. A crash before it leaves nothing that counts; a crash after it is rolled forward by the next run.
Readers see a file whole or not at all, and never a record twice.

Both folders lie beside the table and not in it: some readers take every file below a folder for a part of the table.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from stratalog.errors import StorageError
from stratalog.pipelines.table_files import TableFiles

# In the table: where exports kept their state once, and where they do if nothing can be written beside the table.
INSIDE = "_stratalog"
_VERSION = 1
_OURS = re.compile(r"topic=[^/]+/date=[^/]+/\d{20}-\d{5}\.parquet")
_KEPT = 100  # commits; each has all offsets, so only the last one counts

Offsets = Mapping[str, Mapping[int, int]]


class TableInUseError(StorageError):
    """Another export of the same table has been faster."""


@dataclass(frozen=True)
class Move:
    staged: str
    final: str


@dataclass(frozen=True)
class Commit:
    """`offsets`: by topic and partition, the first offset that the table does not have. `topic_ids`: whose offsets."""

    number: int
    offsets: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    records: int = 0
    moves: Sequence[Move] = ()
    removes: Sequence[str] = ()


class TableCommits:
    """`home`: the folder of the state, by its path from the table."""

    def __init__(self, files: TableFiles) -> None:
        self._files = files
        beside = None if INSIDE in files.folders("") else files.beside()
        self.home = beside or INSIDE
        self._commits = f"{self.home}/commits"
        self._staging = f"{self.home}/staging"

    def recover(self) -> Commit:
        """The last commit, rolled forward; number 0 of a table that has none."""
        last = self.last()
        self._files.make_folder("")
        self._files.make_folder(self.home)
        staged = {file.path for file in self._files.files(self._staging)}
        # What is not staged any more was moved, and may have been taken out of the table by its owner since.
        self._finish(last, [move for move in last.moves if move.staged in staged])
        return last

    def last(self) -> Commit:
        """Raises StorageError where the table and its state do not belong together: one was moved or removed alone."""
        numbers = self._numbers()
        place = self._files.place(self.home)
        if not numbers:
            if any(_OURS.fullmatch(file.path) for file in self._files.files("")):
                what = f"{self._files.place('')}: the table has exported files, but its state is not in {place}"
                raise StorageError(f"{what}; move the state there too, or export to another folder")
            return Commit(0, {})
        if not self._files.exists(""):
            what = f"{self._files.place('')}: the table is gone, but its state is still in {place}"
            raise StorageError(f"{what}; remove that folder to export everything again")
        path = self._path(numbers[-1])
        return parse_commit(self._files.read(path) or b"", f"{self._files.root}/{path}")

    def stage(self, number: int) -> str:
        """A folder of its own for a run that means to make this commit, relative to the table."""
        return f"{self._staging}/{number:020d}-{uuid.uuid4().hex}"

    def commit(self, commit: Commit) -> None:
        """Raises TableInUseError where somebody else has committed this number."""
        try:
            self._files.create(self._path(commit.number), format_commit(commit))
        except FileExistsError as error:
            what = "another export of this table is running"
            raise TableInUseError(f"{self._files.root}: {what}; let one of them end, nothing is lost") from error
        self._finish(commit, commit.moves)
        for number in self._numbers()[:-_KEPT]:
            self._files.delete(self._path(number))

    def _finish(self, commit: Commit, moves: Iterable[Move]) -> None:
        # Removed first: for a moment a reader may miss what is being merged, but it never sees it twice.
        for path in commit.removes:
            self._files.delete(path)
        for move in moves:
            self._files.move(move.staged, move.final)
        # Who meant to make this commit, or one before it, has died or will find that it is made.
        for folder in self._files.folders(self._staging):
            if int(folder.partition("-")[0]) <= commit.number:
                self._files.delete(f"{self._staging}/{folder}")

    def _numbers(self) -> list[int]:
        names = (file.path.rpartition("/")[2] for file in self._files.files(self._commits))
        return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal())

    def _path(self, number: int) -> str:
        return f"{self._commits}/{number:020d}.json"


def moves_for(number: int, staged: Iterable[str], folder: str, suffix: str = ".parquet") -> list[Move]:
    """Names in the table for staged files: the commit's number, so that none is ever used twice."""
    moves = []
    for index, path in enumerate(sorted(path for path in staged if path.endswith(suffix))):
        partition = path.removeprefix(f"{folder}/").rpartition("/")[0]
        name = f"{number:020d}-{index:05d}{suffix}"
        moves.append(Move(path, f"{partition}/{name}" if partition else name))
    return moves


def format_commit(commit: Commit) -> bytes:
    return json.dumps({"version": _VERSION, **asdict(commit)}, indent=1).encode()


def parse_commit(content: bytes, place: str) -> Commit:
    try:
        found: dict[str, Any] = json.loads(content)
        if found["version"] != _VERSION:
            raise StorageError(
                f"{place}: has version {found['version']}; this program knows {_VERSION}: use a newer one"
            )
        return Commit(
            int(found["number"]),
            {topic: {int(number): int(at) for number, at in of.items()} for topic, of in found["offsets"].items()},
            dict(found["topic_ids"]),
            int(found["records"]),
            [Move(move["staged"], move["final"]) for move in found["moves"]],
            list(found["removes"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"is not a commit of an export ({type(error).__name__}: {error})"
        raise StorageError(f"{place}: {what}; put a backup in its place, or export to another table") from error
