"""A step of an export becomes part of the table exactly once, even if the run dies at any change or two compete."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.errors import StorageError
from stratalog.pipelines.table_commits import (
    Commit,
    TableCommits,
    TableInUseError,
    format_commit,
    moves_for,
    parse_commit,
)
from stratalog.pipelines.table_files import LocalFiles

DAY = "topic=orders/date=2026-01-31"


class KilledError(Exception):
    """Stands for the death of the process."""


class DyingFiles(LocalFiles):
    """Dies before its n-th change."""

    def __init__(self, root: Path, changes: int) -> None:
        super().__init__(root)
        self._left = changes

    def create(self, path: str, content: bytes) -> None:
        self._change()
        super().create(path, content)

    def move(self, source: str, target: str) -> None:
        self._change()
        super().move(source, target)

    def delete(self, path: str) -> None:
        self._change()
        super().delete(path)

    def _change(self) -> None:
        if self._left == 0:
            raise KilledError
        self._left -= 1


def step(commits: TableCommits, root: Path, content: list[str], removes: list[str] | None = None) -> Commit:
    """Run one step of an export: recover, stage, commit."""
    last = commits.recover()
    number = last.number + 1
    folder = commits.stage(number)
    (root / folder / DAY).mkdir(parents=True)
    for index, text in enumerate(content):
        (root / folder / DAY / f"part-{index}.parquet").write_text(text)
    (root / folder / "_SUCCESS").touch()
    staged = [file.path for file in LocalFiles(root).files(folder)]
    commit = Commit(number, {"orders": {0: number}}, {}, len(content), moves_for(number, staged, folder), removes or [])
    commits.commit(commit)
    return commit


def visible(root: Path) -> list[str]:
    return sorted((root / file.path).read_text() for file in LocalFiles(root).files(""))


def test_new_table_has_nothing(tmp_path: Path) -> None:
    assert TableCommits(LocalFiles(tmp_path)).recover() == Commit(0, {})


def test_file_names_are_never_used_twice(tmp_path: Path) -> None:
    commits = TableCommits(LocalFiles(tmp_path))
    step(commits, tmp_path, ["a", "b"])
    step(commits, tmp_path, ["c"])
    assert visible(tmp_path) == ["a", "b", "c"]
    assert [file.path for file in LocalFiles(tmp_path).files("")] == [
        f"{DAY}/00000000000000000001-00000.parquet",
        f"{DAY}/00000000000000000001-00001.parquet",
        f"{DAY}/00000000000000000002-00000.parquet",
    ]
    assert not list((tmp_path / commits.home / "staging").iterdir())


@pytest.mark.parametrize("changes", range(8))
def test_run_that_dies_at_any_change_leaves_each_record_once(tmp_path: Path, changes: int) -> None:
    files = LocalFiles(tmp_path)
    first = step(TableCommits(files), tmp_path, ["a", "b"])
    old = [move.final for move in first.moves]
    died = False
    try:  # a merge of the existing files
        step(TableCommits(DyingFiles(tmp_path, changes)), tmp_path, ["ab"], removes=old)
    except KilledError:
        died = True
    assert died == (changes < 5)
    last = TableCommits(files).recover()
    assert visible(tmp_path) == (["ab"] if last.number == 2 else ["a", "b"])
    step(TableCommits(files), tmp_path, ["c"])
    assert visible(tmp_path) == (["ab", "c"] if last.number == 2 else ["a", "b", "c"])
    assert not list((tmp_path / TableCommits(files).home / "staging").iterdir())


def test_second_export_of_the_same_step_is_refused(tmp_path: Path) -> None:
    commits = TableCommits(LocalFiles(tmp_path))
    step(commits, tmp_path, ["a"])
    with pytest.raises(TableInUseError, match="another export of this table is running"):
        commits.commit(Commit(1, {}))
    assert visible(tmp_path) == ["a"]


def test_file_that_the_owner_deleted_stays_deleted(tmp_path: Path) -> None:
    commits = TableCommits(LocalFiles(tmp_path))
    commit = step(commits, tmp_path, ["a", "b"])
    (tmp_path / commit.moves[0].final).unlink()
    assert commits.recover().number == 1
    assert visible(tmp_path) == ["b"]


def test_old_commits_are_forgotten(tmp_path: Path) -> None:
    commits = TableCommits(LocalFiles(tmp_path))
    for number in range(1, 105):
        commits.commit(Commit(number, {"orders": {0: number}}))
    assert len(list((tmp_path / commits.home / "commits").iterdir())) == 100
    assert commits.last().offsets == {"orders": {0: 104}}


def test_commit_is_read_as_written() -> None:
    commit = Commit(7, {"orders": {0: 5, 11: 2**62}}, {"orders": "id"}, 3, moves_for(7, ["s/x.parquet"], "s"), ["gone"])
    assert parse_commit(format_commit(commit), "here") == commit


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"version": 1, "number": "x"}', b'{"version": 2}'])
def test_damaged_commit_is_an_error_with_its_path(content: bytes) -> None:
    with pytest.raises(StorageError, match="here: "):
        parse_commit(content, "here")


def test_folder_of_the_table_contains_no_state(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    commits = TableCommits(LocalFiles(table))
    step(commits, table, ["a"])
    assert [path.suffix for path in table.rglob("*") if path.is_file()] == [".parquet"]
    assert commits.home == "../.orders.stratalog"


def test_state_inside_the_table_is_used(tmp_path: Path) -> None:
    (tmp_path / "_stratalog" / "commits").mkdir(parents=True)
    (tmp_path / "_stratalog" / "commits" / f"{7:020d}.json").write_bytes(format_commit(Commit(7, {"orders": {0: 5}})))
    commits = TableCommits(LocalFiles(tmp_path))
    assert commits.recover().offsets == {"orders": {0: 5}}
    assert step(commits, tmp_path, ["a"]).number == 8
    assert TableCommits(LocalFiles(tmp_path)).last().number == 8


def test_table_moved_without_its_state_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    step(TableCommits(LocalFiles(table)), table, ["a"])
    table.rename(tmp_path / "moved")
    with pytest.raises(StorageError, match=r"its state is not in .*/\.moved\.stratalog; move the state there too"):
        TableCommits(LocalFiles(tmp_path / "moved")).recover()
    with pytest.raises(StorageError, match=r"orders: the table is missing, .*remove that folder to export everything"):
        TableCommits(LocalFiles(table)).recover()
    (tmp_path / ".orders.stratalog").rename(tmp_path / ".moved.stratalog")
    assert TableCommits(LocalFiles(tmp_path / "moved")).recover().number == 1
