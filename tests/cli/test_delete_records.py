from __future__ import annotations

import pytest

from tests.cli.running import invoke, json_of, one_line_error
from tests.cli.topics import Seen, write_topic

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

START = 1_700_000_000_000  # records have times a second apart


@pytest.fixture
def orders(empty_server: str) -> None:
    """A topic with two partitions, with ten and three records."""
    assert invoke("topic", "create", "orders", "--partitions", 2).exit_code == 0
    write_topic(empty_server, "orders", [Seen(None, b"%d" % number) for number in range(10)], START)
    write_topic(empty_server, "orders", [Seen(None, b"%d" % number, partition=1) for number in range(3)], START)


def starts() -> list[int]:
    (topic,) = json_of("topic", "describe", "orders")
    return [row["start_offset"] for row in topic["partitions"]]


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["orders:0", "--before", "4"], [4, 0]),
        (["orders:0", "--before", "-1"], [9, 0]),
        (["orders:1", "--before", "end"], [0, 3]),
        (["orders", "--before", "end"], [10, 3]),
        (["orders:0,1", "--before-time", str(START + 2000)], [2, 2]),
        (["orders", "--before-time", "-1h"], [10, 3]),
        (["orders", "--before", "0"], [0, 0]),
    ],
)
def test_records_before_an_offset_or_a_time_are_deleted(arguments: list[str], expected: list[int]) -> None:
    assert invoke("delete-records", *arguments, "--dry-run").exit_code == 0
    assert starts() == [0, 0]
    done = invoke("delete-records", *arguments, "--yes")
    assert (done.exit_code, done.stderr) == (0, "")
    assert starts() == expected


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("answer", [b"", b"n\n", b"\n"])
def test_nothing_is_deleted_without_confirmation(answer: bytes) -> None:
    done = invoke("delete-records", "orders:0", "--before", 4, stdin=answer)
    assert done.exit_code == 2
    assert done.stderr.startswith("Delete up to 4 records of orders-0 before offset 4? [y/N] ")
    assert "nothing was deleted; --yes deletes without asking" in done.stderr
    assert starts() == [0, 0]


@pytest.mark.usefixtures("orders")
def test_deletion_is_reported() -> None:
    done = invoke("delete-records", "orders:0", "--before", 4, stdin=b"y\n")
    assert done.exit_code == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["topic", "partition", "start", "was", "start", "is", "records"],
        ["orders", "0", "0", "4", "4"],
    ]
    (deletion,) = json_of("delete-records", "orders:0", "--before", 5, "--yes")
    assert (deletion["from_offset"], deletion["to_offset"], deletion["done"]) == (4, 5, True)
    assert "no records to delete" in invoke("delete-records", "orders:0", "--before", 5).stdout


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["orders"], "--before or --before-time"),
        (["orders", "--before", "1", "--before-time", "-1h"], "one of them"),
        (["orders:2", "--before", "1"], "partitions 0 to 1"),
        (["orders", "--before", "x"], "--before-offset is 'x'"),
        (["orders:0", "--before", "11"], "ends at 10"),
        (["ordrs", "--before", "1"], "did you mean 'orders'?"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line_with_advice(arguments: list[str], message: str) -> None:
    assert message in one_line_error(invoke("delete-records", *arguments, "--yes"))
