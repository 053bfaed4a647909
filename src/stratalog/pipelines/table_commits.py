"""Commits the steps of an export: each step becomes part of the table exactly once.

Data is first written to a staging folder. Then one small file in the folder `commits` decides: it has the staged files
with their names in the table, the older files that they replace, and the offsets up to which the table goes. After that
the files are moved. A crash before the commit has no effect on the table; after a crash during the moves, the next run
completes them. Readers see only complete files, and no record twice.

Both folders are next to the table, because some readers take every file below a folder for a part of the table.
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

# The state folder inside the table, for tables of older versions, and if the folder above the table is not writable.
INSIDE = "_stratalog"
_VERSION = 1
_OURS = re.compile(r"topic=[^/]+/date=[^/]+/\d{20}-\d{5}\.parquet")
_KEPT = 100  # commits that are kept; each contains all offsets, so only the last one matters

Offsets = Mapping[str, Mapping[int, int]]


class TableInUseError(StorageError):
    """Another export has committed to the same table."""


@dataclass(frozen=True)
class Move:
    staged: str
    final: str


@dataclass(frozen=True)
class Commit:
    """`offsets` has, by topic and partition, the first offset after the exported ones; `topic_ids` the topics' ids."""

    number: int
    offsets: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    records: int = 0
    moves: Sequence[Move] = ()
    removes: Sequence[str] = ()


class TableCommits:
    """The commits of a table. `home` is the path of the state folder, relative to the table."""

    def __init__(self, files: TableFiles) -> None:
        self._files = files
        sibling = None if INSIDE in files.folders("") else files.sibling()
        self.home = sibling or INSIDE
        self._commits = f"{self.home}/commits"
        self._staging = f"{self.home}/staging"

    def recover(self) -> Commit:
        """Complete the last commit and return it. A table without a commit has number 0."""
        last = self.last()
        self._files.make_folder("")
        self._files.make_folder(self.home)
        staged = {file.path for file in self._files.files(self._staging)}
        # Files that are no longer staged were moved; the table's owner may have removed them since.
        self._finish(last, [move for move in last.moves if move.staged in staged])
        return last

    def last(self) -> Commit:
        """Return the last commit. Raises StorageError if only the table or only its state was moved or removed."""
        numbers = self._numbers()
        home = self._files.display_path(self.home)
        if not numbers:
            if any(_OURS.fullmatch(file.path) for file in self._files.files("")):
                raise StorageError(
                    f"{self._files.display_path('')}: the table contains exported files, but its state is not in "
                    f"{home}; move the state there too, or export to another folder"
                )
            return Commit(0, {})
        if not self._files.exists(""):
            raise StorageError(
                f"{self._files.display_path('')}: the table is missing, but its state is in {home}; remove that "
                "folder to export everything again"
            )
        path = self._path(numbers[-1])
        return parse_commit(self._files.read(path) or b"", f"{self._files.root}/{path}")

    def stage(self, number: int) -> str:
        """Return the path, relative to the table, of a new staging folder for this commit."""
        return f"{self._staging}/{number:020d}-{uuid.uuid4().hex}"

    def commit(self, commit: Commit) -> None:
        """Commit a step. Raises TableInUseError if another export has committed this number."""
        try:
            self._files.create(self._path(commit.number), format_commit(commit))
        except FileExistsError as error:
            raise TableInUseError(
                f"{self._files.root}: another export of this table is running; wait until it ends, nothing is lost"
            ) from error
        self._finish(commit, commit.moves)
        for number in self._numbers()[:-_KEPT]:
            self._files.delete(self._path(number))

    def _finish(self, commit: Commit, moves: Iterable[Move]) -> None:
        # Deletions come first: for a moment a reader may miss the records of a merge, but it never sees them twice.
        for path in commit.removes:
            self._files.delete(path)
        for move in moves:
            self._files.move(move.staged, move.final)
        # A run that staged this commit or an older one has died, or will fail to commit.
        for folder in self._files.folders(self._staging):
            if int(folder.partition("-")[0]) <= commit.number:
                self._files.delete(f"{self._staging}/{folder}")

    def _numbers(self) -> list[int]:
        names = (file.path.rpartition("/")[2] for file in self._files.files(self._commits))
        return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal())

    def _path(self, number: int) -> str:
        return f"{self._commits}/{number:020d}.json"


def moves_for(number: int, staged: Iterable[str], folder: str, suffix: str = ".parquet") -> list[Move]:
    """Choose names in the table for staged files. They contain the commit's number, so no name is used twice."""
    moves = []
    for index, path in enumerate(sorted(path for path in staged if path.endswith(suffix))):
        partition = path.removeprefix(f"{folder}/").rpartition("/")[0]
        name = f"{number:020d}-{index:05d}{suffix}"
        moves.append(Move(path, f"{partition}/{name}" if partition else name))
    return moves


def format_commit(commit: Commit) -> bytes:
    return json.dumps({"version": _VERSION, **asdict(commit)}, indent=1).encode()


def parse_commit(content: bytes, path: str) -> Commit:
    try:
        fields: dict[str, Any] = json.loads(content)
        if fields["version"] != _VERSION:
            raise StorageError(
                f"{path}: has version {fields['version']}; this program supports {_VERSION}: use a newer one"
            )
        return Commit(
            int(fields["number"]),
            {
                topic: {int(partition): int(offset) for partition, offset in offsets.items()}
                for topic, offsets in fields["offsets"].items()
            },
            dict(fields["topic_ids"]),
            int(fields["records"]),
            [Move(move["staged"], move["final"]) for move in fields["moves"]],
            list(fields["removes"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{path}: is not a commit of an export ({type(error).__name__}: {error}); replace it with a backup, or "
            "export to another table"
        ) from error
