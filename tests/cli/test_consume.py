from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest

from stratalog.testing import BrokerProcess
from tests.cli.running import COMMAND, invoke, one_line_error
from tests.cli.topics import Seen, read_topic, write_topic

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

START = 1_700_000_000_000  # records have times a second apart
TEN = [Seen(b"k%d" % number, b"v%d" % number) for number in range(10)]


def consumed(topic: str, *arguments: object) -> list[str]:
    done = invoke("consume", topic, *arguments)
    assert done.exit_code == 0
    assert done.stderr.startswith(f"stratalog: no records in {topic}") if not done.stdout else not done.stderr
    return done.stdout.splitlines()


def envelopes(topic: str, *arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in consumed(topic, "--json", *arguments)]


@pytest.fixture
def ten(server: str, stratalog_topic: str) -> str:
    """A topic with ten records."""
    write_topic(server, stratalog_topic, TEN)
    return stratalog_topic


def test_all_existing_records_are_printed(ten: str) -> None:
    assert consumed(ten) == [f"v{number}" for number in range(10)]


def test_empty_topic_ends_at_once(server: str, stratalog_topic: str) -> None:
    assert consumed(stratalog_topic) == []


def test_read_without_records_says_so(ten: str, stratalog_broker: BrokerProcess) -> None:
    def stderr(*arguments: object) -> str:
        return invoke("consume", *arguments).stderr

    assert stderr(ten, "--from-offset", "end") == f"stratalog: no records in {ten} in the given range\n"
    group = f"{ten}-readers"
    assert stderr(ten, "--group", group) == ""
    assert stderr(ten, "--group", group) == (
        f"stratalog: no records in {ten} after the group's offsets; --follow waits for new ones\n"
    )
    assert invoke("topic", "create", f"{ten}-empty").exit_code == 0
    assert stderr(f"{ten}-empty") == f"stratalog: no records in {ten}-empty\n"
    pattern = f"{ten}-em.*"
    assert stderr("--pattern", pattern) == f"stratalog: no records in topics that match {pattern}\n"


def test_bytes_are_printed_as_they_are(server: str, stratalog_topic: str) -> None:
    write_topic(server, stratalog_topic, [Seen(b"\xff", b"\x00\xfe"), Seen(None, None), Seen(b"", b"")])
    assert invoke("consume", stratalog_topic).stdout_bytes == b"\x00\xfe\n\n\n"
    assert invoke("consume", stratalog_topic, "-K", "\\t").stdout_bytes == b"\xff\t\x00\xfe\n\t\n\t\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--from-offset", "7"], [7, 8, 9]),
        (["--from-offset", "-2"], [8, 9]),
        (["--from-offset", "end"], []),
        (["--from-offset", "beginning", "--until-offset", "2"], [0, 1]),
        (["--until-offset", "-8"], [0, 1]),
        (["--from-time", str(START + 6001)], [7, 8, 9]),
        (["--from-time", "2023-11-14T22:13:24Z", "--until-time", "2023-11-14T22:13:26Z"], [4, 5]),
        (["--from-time", "-1h"], []),
        (["--until-time", "-1h", "--count", "3"], [0, 1, 2]),
        (["--count", "3", "--from-offset", "5"], [5, 6, 7]),
        (["--count", "100"], list(range(10))),
    ],
)
def test_records_between_offsets_and_times(ten: str, arguments: list[str], expected: list[int]) -> None:
    assert [record["offset"] for record in envelopes(ten, *arguments)] == expected


@pytest.mark.stratalog_topic(partitions=3)
def test_all_partitions_are_read_or_only_the_named_ones(server: str, stratalog_topic: str) -> None:
    write_topic(server, stratalog_topic, [Seen(None, b"%d" % number, (), number % 3) for number in range(9)])
    assert sorted(consumed(stratalog_topic)) == [str(number) for number in range(9)]
    assert consumed(stratalog_topic, "--partition", 1) == ["1", "4", "7"]
    assert sorted(consumed(stratalog_topic, "-p", 0, "-p", 2, "--from-offset", -1)) == ["6", "8"]


@pytest.mark.stratalog_topic(partitions=2)
def test_produce_sends_consumed_envelopes_byte_for_byte(server: str, stratalog_topic: str) -> None:
    records = [
        Seen(b"\xff\x00", b"\xfe", (("h", b"\xfd"), ("h", None), ("grün", "é".encode())), 1),
        Seen(None, None, (), 0),
        Seen(b"", b"", (("", b""),), 1),
        Seen("schlüssel".encode(), b'{"json": "\\n"}\n\t\x1b', (), 0),
    ]
    write_topic(server, stratalog_topic, records)
    lines = invoke("consume", stratalog_topic, "--json").stdout_bytes
    copy = f"{stratalog_topic}-copy"
    assert invoke("topic", "create", copy, "--partitions", 2).exit_code == 0
    assert invoke("produce", copy, "--json", stdin=lines).exit_code == 0
    assert sorted(map(repr, read_topic(server, copy, 4))) == sorted(map(repr, records))
    again = invoke("consume", copy, "--json").stdout_bytes
    assert sorted(again.replace(copy.encode(), stratalog_topic.encode()).splitlines()) == sorted(lines.splitlines())


def test_group_continues_at_its_offsets_and_commits_printed_records(ten: str) -> None:
    group = f"group-of-{ten}"
    assert consumed(ten, "--group", group, "--count", 3) == ["v0", "v1", "v2"]
    assert consumed(ten, "--group", group, "--count", 1) == ["v3"]
    assert consumed(ten, "--group", group) == [f"v{number}" for number in range(4, 10)]
    assert consumed(ten, "--group", group) == []


def test_follow_prints_new_records_until_interrupted(server: str, ten: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "consume", ten, "--follow", "--from-offset", "-1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"v9\n"
        write_topic(server, ten, [Seen(None, b"new")])
        assert process.stdout.readline() == b"new\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"stratalog: interrupted\n"
    assert process.returncode == 130


def test_interrupted_group_has_committed_printed_records(server: str, ten: str) -> None:
    group = f"group-of-{ten}"
    with subprocess.Popen([*COMMAND, "consume", ten, "--follow", "--group", group], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(10)][-1] == b"v9\n"
        write_topic(server, ten, [Seen(None, b"one more")])
        assert process.stdout.readline() == b"one more\n"
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    left = consumed(ten, "--group", group)
    assert left in ([], ["one more"])  # the interrupt may come between printing and committing


def test_closed_pipe_ends_consume_silently(server: str, stratalog_topic: str) -> None:
    write_topic(server, stratalog_topic, [Seen(None, bytes(1000))] * 1000)
    with subprocess.Popen(
        [*COMMAND, "consume", stratalog_topic], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_consume_continues_after_a_broker_restart(server: str, ten: str, stratalog_broker: BrokerProcess) -> None:
    with subprocess.Popen([*COMMAND, "consume", ten, "--follow"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(10)][-1] == b"v9\n"
        stratalog_broker.kill()
        stratalog_broker.restart()
        write_topic(server, ten, [Seen(None, b"after")])
        assert process.stdout.readline() == b"after\n"
        process.send_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from-offset", "11"], "ends at 10"),
        (["--from-offset", "-1h"], "--from-time"),
        (["--from-time", "noon"], "-1h"),
        (["--from-offset", "1", "--from-time", "-1h"], "one of them"),
        (["--follow", "--until-offset", "5"], "--follow"),
        (["--partition", "5"], "has only partition 0"),
        (["--group", "g", "--from-offset", "1"], "stratalog group reset g"),
        (["--group", "g", "--partition", "0"], "stratalog group reset g"),
        (["--json", "-K", ":"], "--json"),
        (["--set", "fetch.max.byte=1"], "fetch.max.bytes"),
        (["--count", "0"], "--help"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line_with_advice(ten: str, arguments: list[str], message: str) -> None:
    assert message in one_line_error(invoke("consume", ten, *arguments))


@pytest.mark.parametrize("arguments", [[], ["--group", "g"]])
def test_missing_topic_is_named_with_the_command_that_creates_it(server: str, arguments: list[str]) -> None:
    assert "stratalog topic create nowhere" in one_line_error(invoke("consume", "nowhere", *arguments))


def test_unreachable_broker_is_named() -> None:
    arguments = ["--bootstrap-server", "127.0.0.1:1", "--set", "default.api.timeout.ms=300"]
    assert "127.0.0.1:1" in one_line_error(invoke("consume", "orders", *arguments))


def test_closed_pipe_is_noticed_without_new_records(ten: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "consume", ten, "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(10)][-1] == b"v9\n"
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""


def test_waiting_for_a_killed_broker_is_reported(stratalog_fresh_broker: BrokerProcess) -> None:
    stratalog_fresh_broker.create_topic("orders")
    server = stratalog_fresh_broker.bootstrap_servers
    write_topic(server, "orders", [Seen(None, b"tea")])
    with subprocess.Popen(
        [*COMMAND, "consume", "orders", "--follow", "-b", server], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"tea\n"
        stratalog_fresh_broker.kill()
        message = process.stderr.readline()
        while b"waiting" not in message:
            assert message.startswith(b"stratalog: ")
            message = process.stderr.readline()
        assert message == f"stratalog: waiting for {server}: connection refused\n".encode()
        stratalog_fresh_broker.restart()
        assert process.stderr.readline() == f"stratalog: the broker at {server} is back\n".encode()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"stratalog: interrupted\n"


@pytest.fixture
def shops(empty_server: str) -> str:
    """Three topics with a record each."""
    for name in ("orders-eu", "orders-us", "payments"):
        assert invoke("topic", "create", name, "--partitions", 1).exit_code == 0
        write_topic(empty_server, name, [Seen(b"k", f"of {name}".encode())])
    return empty_server


@pytest.mark.parametrize("arguments", [["orders-eu", "orders-us"], ["--pattern", "orders-.*"]])
@pytest.mark.parametrize("group", [[], ["--group", "shop", "--count", 2]])
def test_several_topics_are_read_at_once(shops: str, arguments: list[str], group: list[object]) -> None:
    assert sorted(consumed(*arguments, *group)) == ["of orders-eu", "of orders-us"]


def test_pattern_must_match_a_whole_name(shops: str) -> None:
    assert "matches no complete topic name" in one_line_error(invoke("consume", "--pattern", "orders"))


def test_partition_must_be_in_each_of_several_topics(shops: str) -> None:
    assert "has only partition 0" in one_line_error(invoke("consume", "orders-eu", "payments", "-p", 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the topics to read"),
        (["orders", "--pattern", "x"], "or give --pattern"),
        (["--pattern", "("], "not a regular expression"),
        (["orders", "--format", "%k %q"], "'%q', which is not known; give one of %t, %p, "),
        (["orders", "--format", "100%"], "ends with a single %"),
        (["orders", "--format", "\\q"], "--format is"),
        (["orders", "--format", "%s", "--json"], "leave out --json"),
    ],
)
def test_invalid_topics_and_templates_are_refused_in_one_line(arguments: list[str], message: str) -> None:
    assert message in one_line_error(invoke("consume", *arguments))


def test_format_replaces_its_tokens(server: str, stratalog_topic: str) -> None:
    records = [Seen(b"ada", b"\xfftea", (("h", b"1"), ("n", None))), Seen(None, None), Seen(b"", b"")]
    write_topic(server, stratalog_topic, records)
    shown = invoke("consume", stratalog_topic, "--format", r"%p\t%o %T %k(%K) %s(%S) %h 100%%\x21\n").stdout_bytes
    assert shown == (
        b"0\t0 %d ada(3) \xfftea(4) h=1,n=NULL 100%%!\n0\t1 %d (-1) (-1)  100%%!\n0\t2 %d (0) (0)  100%%!\n"
        % (START, START + 1000, START + 2000)
    )
    assert consumed(stratalog_topic, "--format", "%t;", "--count", 2) == [f"{stratalog_topic};" * 2]
