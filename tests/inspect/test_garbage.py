"""For any bytes, the tools give a result or a StratalogError, in limited time."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from stratalog.errors import StratalogError
from stratalog.inspect.dump import Options, dump, identify
from stratalog.inspect.lookup import explain_offset
from stratalog.inspect.lookup_time import explain_timestamp
from stratalog.inspect.verify import verify
from tests.inspect.test_verify import Listener
from tests.inspect.written_logs import GOLDEN, START, write_log, write_transactions

SOURCES = ("java-transactional", "java-compacted", "java-idempotent", "magic1-gzip", "magic0-snappy", "java-zstd")
ROUNDS = 40


def use_every_tool(partition: Path, source: random.Random) -> None:
    for path in partition.iterdir():
        try:
            identify(path)
        except StratalogError:
            continue
        list(dump(path, Options(records=True)).rows)
    for offset in (0, source.randrange(60)):
        try:
            explain_offset(partition, offset)
        except StratalogError:
            pass
    for timestamp in (0, START + source.randrange(60), 1_600_000_000_000 + source.randrange(60)):
        try:
            explain_timestamp(partition, timestamp)
        except StratalogError:
            pass
    verify(partition, Listener())


def spoil(path: Path, source: random.Random) -> None:
    content = bytearray(path.read_bytes())
    kind = source.randrange(5)
    if kind == 0 and content:
        for _ in range(source.choice((1, 1, 3, 20))):
            content[source.randrange(len(content))] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
    elif kind == 1 and content:
        del content[source.randrange(len(content)) :]
    elif kind == 2:
        content += source.randbytes(source.randrange(200))
    elif kind == 3:
        content = bytearray(source.randbytes(source.randrange(300)))
    elif content:
        at = source.randrange(len(content))
        content[at : at + 4] = source.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", bytes(4)))
    path.write_bytes(content)


@pytest.mark.parametrize("name", SOURCES)
def test_damaged_kafka_files_break_no_tool(tmp_path: Path, name: str) -> None:
    source = random.Random(name)
    for number in range(ROUNDS):
        partition = tmp_path / f"orders-{number}"
        shutil.copytree(GOLDEN / name, partition)
        files = sorted(path for path in partition.iterdir() if path.name != "expected.json")
        for path in source.sample(files, source.choice((1, 1, 2, len(files)))):
            spoil(path, source)
        use_every_tool(partition, source)
        shutil.rmtree(partition)


def test_damaged_files_of_ours_break_no_tool(tmp_path: Path) -> None:
    source = random.Random(7)
    made = [write_log(tmp_path / "a" / "orders-0", 60), write_transactions(tmp_path / "b" / "orders-0")]
    for number in range(ROUNDS):
        for original in made:
            home = tmp_path / f"copy-{number}"
            shutil.copytree(original.parent, home)
            for path in source.sample(sorted(file for file in home.rglob("*") if file.is_file()), 2):
                spoil(path, source)
            use_every_tool(home / "orders-0", source)
            verify(home, Listener())
            shutil.rmtree(home)


def test_directories_and_links_instead_of_files_break_no_tool(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 20)
    for suffix in (".index", ".timeindex"):
        (path / f"{0:020d}{suffix}").unlink()
    (path / f"{0:020d}.index").mkdir()
    (path / f"{0:020d}.timeindex").symlink_to("nowhere")
    (path / f"{500:020d}.log").mkdir()
    report = verify(path, Listener())
    assert report.errors == 1
