from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from stratalog.testing import BrokerProcess
from tests.cli.running import COMMAND, error_with_a_note, invoke, one_line_error
from tests.cli.topics import Seen, read_topic
from tests.clients.waiting import wait_until

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.usefixtures("server")]

QUICK = ("--set", "request.timeout.ms=1000", "--set", "delivery.timeout.ms=1500")


def produce(topic: str, stdin: bytes, *arguments: object) -> None:
    done = invoke("produce", topic, *arguments, stdin=stdin)
    assert (done.exit_code, done.stdout) == (0, "")
    assert re.fullmatch(r"stratalog: [0-9,]+ records? acknowledged\n", done.stderr)


def test_each_line_is_a_record(server: str, stratalog_topic: str) -> None:
    produce(stratalog_topic, b"tea\n\n  cake \r\nno newline at the end \xff")
    values = [seen.value for seen in read_topic(server, stratalog_topic, 4)]
    assert values == [b"tea", b"", b"  cake \r", b"no newline at the end \xff"]


def test_records_that_are_refused_again_and_again_are_reported(
    stratalog_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.client.batch_completion.REPORT_REFUSALS_AFTER", 0.2)
    assert invoke("config", "set", "topic", stratalog_topic, "min.insync.replicas=2").exit_code == 0
    done = invoke("produce", stratalog_topic, *QUICK, stdin=b"tea\n")
    warning, error, _ = done.stderr.splitlines()
    assert warning == (
        "stratalog: the broker refuses records; they are sent again until delivery.timeout.ms = 1500 is over. "
        f"The last error: {stratalog_topic}-0: NOT_ENOUGH_REPLICAS (error 19): min.insync.replicas is 2, but "
        "1 replica is in sync"
    )
    assert "not acknowledged within delivery.timeout.ms" in error


def test_empty_input_sends_no_record(server: str, stratalog_topic: str) -> None:
    produce(stratalog_topic, b"")
    assert read_topic(server, stratalog_topic, 0) == []


@pytest.mark.parametrize("separator", [":", "\\t", "=>", "→"])
def test_key_ends_at_the_separator(server: str, stratalog_topic: str, separator: str) -> None:
    between = separator.replace("\\t", "\t").encode()
    produce(stratalog_topic, b"ada" + between + b"tea" + between + b"milk\n" + between, "--key-separator", separator)
    seen = read_topic(server, stratalog_topic, 2)
    assert seen == [Seen(b"ada", b"tea" + between + b"milk"), Seen(b"", b"")]


def test_line_without_the_separator_is_refused_after_the_lines_before_it_are_sent(
    server: str, stratalog_topic: str
) -> None:
    done = invoke("produce", stratalog_topic, "--key-separator", ":", stdin=b"a:b\nno key\nc:d\n")
    refused, note = error_with_a_note(done)
    assert note == (
        "1 record acknowledged, not sent from line 2 on; repair line 2, then continue with it: ... | tail -n +2 | "
        f"stratalog produce {stratalog_topic} --key-separator :; or skip it: ... | tail -n +3 | "
        f"stratalog produce {stratalog_topic} --key-separator :"
    )
    assert "stdin, line 2" in refused
    assert "--key-separator" in refused
    assert read_topic(server, stratalog_topic, 1) == [Seen(b"a", b"b")]


def test_headers_are_on_every_record(server: str, stratalog_topic: str) -> None:
    produce(stratalog_topic, b"a\nb\n", "--header", "source=import", "-H", "source=x=y", "-H", "empty=")
    headers = (("source", b"import"), ("source", b"x=y"), ("empty", b""))
    seen = read_topic(server, stratalog_topic, 2)
    assert seen == [Seen(None, b"a", headers), Seen(None, b"b", headers)]


@pytest.mark.stratalog_topic(partitions=3)
def test_envelopes_set_every_field_of_a_record(server: str, stratalog_topic: str) -> None:
    lines = b"""
        {"key": "a", "value": {"base64": "/wA="}, "partition": 2, "headers": [["h", null]], "timestamp": 5}
        {"key": null, "value": null, "partition": 1, "offset": 99, "topic": "other"}
    """
    produce(stratalog_topic, lines, "--json", "-H", "added=1")
    seen = read_topic(server, stratalog_topic, 2)
    assert sorted(seen, key=lambda record: record.partition) == [
        Seen(None, None, (("added", b"1"),), 1),
        Seen(b"a", b"\xff\x00", (("h", None), ("added", b"1")), 2),
    ]


@pytest.mark.stratalog_topic(partitions=3)
def test_options_override_the_partitions_of_envelopes(server: str, stratalog_topic: str) -> None:
    produce(stratalog_topic, b'{"key": "a", "partition": 0}\n{"key": "a", "partition": 2}', "--json", "--by-key")
    produce(stratalog_topic, b'{"key": "a", "partition": 1}', "--json", "--partition", 0)
    partitions = [record.partition for record in read_topic(server, stratalog_topic, 3)]
    assert sorted(partitions) == [0, 1, 1]  # Kafka's murmur2 gives "a" the second of three


def test_lines_can_come_from_a_file(server: str, stratalog_topic: str, tmp_path: Path) -> None:
    (tmp_path / "orders").write_bytes(b"tea\ncake\n")
    produce(stratalog_topic, b"", "--file", tmp_path / "orders", "--compression", "zstd", "--acks", "1")
    seen = read_topic(server, stratalog_topic, 2)
    assert [record.value for record in seen] == [b"tea", b"cake"]


@pytest.mark.parametrize("separator", [None, ":"])
def test_many_lines_keep_their_order(server: str, stratalog_topic: str, separator: str | None) -> None:
    """Short lines are sent as columns, long lines one by one."""
    lengths = [5] * 100_000 + [5000] * 300 + [5] * 100_000 + [5000] * 50
    lines = [b"%d:" % number + b"." * length for number, length in enumerate(lengths)]
    produce(stratalog_topic, b"\n".join(lines), *(["--key-separator", separator] if separator else []))
    seen = read_topic(server, stratalog_topic, len(lines))
    assert [(record.key or b"") + (b":" if separator else b"") + (record.value or b"") for record in seen] == lines


@pytest.mark.stratalog_topic(partitions=2)
def test_many_lines_go_to_the_named_partition(server: str, stratalog_topic: str) -> None:
    produce(stratalog_topic, b"tea\n" * 5000, "--partition", 1)
    assert {record.partition for record in read_topic(server, stratalog_topic, 5000)} == {1}


def test_line_without_the_separator_among_many_is_named(server: str, stratalog_topic: str) -> None:
    done = invoke("produce", stratalog_topic, "-K", ":", stdin=b"a:b\n" * 4000 + b"no key\n")
    refused, note = error_with_a_note(done)
    assert "stdin, line 4,001" in refused
    assert note.startswith(
        "4,000 records acknowledged, not sent from line 4,001 on; repair line 4,001, then continue with it: "
        f"... | tail -n +4001 | stratalog produce {stratalog_topic} --key-separator :; or skip it: ... | tail -n +4002 "
    )
    assert len(read_topic(server, stratalog_topic, 4000)) == 4000


def test_without_acknowledgements_none_are_claimed(server: str, stratalog_topic: str) -> None:
    _, note = error_with_a_note(invoke("produce", stratalog_topic, "-K", ":", "--acks", "0", stdin=b"a:b\nno key\n"))
    assert note.startswith("1 record sent without acknowledgement, not sent from line 2 on; ")


def test_many_lines_that_are_not_delivered_are_named(stratalog_fresh_broker: BrokerProcess) -> None:
    stratalog_fresh_broker.create_topic("orders", config={"max.message.bytes": 1000})
    server = stratalog_fresh_broker.bootstrap_servers
    done = invoke("produce", "orders", "-b", server, stdin=(b"." * 1500 + b"\n") * 2500)
    refused, note = error_with_a_note(done)
    assert "max.message.bytes" in refused
    assert "delivered" in refused
    assert note.startswith("0 records acknowledged, ")
    command = f"stratalog produce orders --bootstrap-server {server}"
    assert f"; repair line 1, then continue with it: ... | tail -n +1 | {command}; or skip it: " in note


def test_partly_failed_lines_name_the_line_to_continue_with(
    stratalog_fresh_broker: BrokerProcess, tmp_path: Path
) -> None:
    """Long lines are in batches of their own, which are larger than the topic allows."""
    stratalog_fresh_broker.create_topic("orders", config={"max.message.bytes": 300_000})
    server = stratalog_fresh_broker.bootstrap_servers
    (tmp_path / "some orders").write_bytes(b"tea\n" * 5000 + b"." * 400_000 + b"\n" + b"tea\n" * 5000)
    refused, note = error_with_a_note(invoke("produce", "orders", "-b", server, "--file", tmp_path / "some orders"))
    assert "some orders, lines 1 to 10,001: not all were delivered" in refused
    match = re.fullmatch(
        r"([0-9,]+) records acknowledged, ([0-9,]+) failed; repair line 5,001, then continue with (?:line [0-9,]+|it): "
        r"tail -n \+([0-9]+) '[^']*some orders' \| stratalog produce orders --bootstrap-server [0-9.:]+"
        r"(; or skip it: tail -n \+5002 .* [0-9.:]+)?"
        r"( \(of what follows, ([0-9,]+) records acknowledged would be sent again\))?",
        note,
    )
    assert match is not None, note
    acknowledged, failed, line = (int(match[group].replace(",", "")) for group in (1, 2, 3))
    again = int((match[6] or "0").replace(",", ""))
    assert acknowledged + failed == 10_001
    assert line <= 5001
    assert line - 1 + again == acknowledged
    assert len(read_topic(server, "orders", acknowledged)) == acknowledged


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--partition", "7"], "has only partition 0; give another --partition, or add partitions"),
        (["--compression", "brotli"], "gzip"),
        (["--acks", "2"], "all"),
        (["--header", "nonsense"], "source=import"),
        (["--json", "--key-separator", ":"], "--json"),
        (["--key-separator", ""], "empty"),
        (["--key-separator", "\\q"], "\\t"),
        (["--set", "lingr.ms=5"], "linger.ms"),
        (["--set", "bootstrap.servers=x"], "--bootstrap-server"),
        (["--set", "nonsense"], "client.id="),
        (["--file", "missing.txt"], "check the path"),
        (["--file", "/"], "--file is /, which is a directory; give a file of lines"),
        (["--json"], "stdin, line 1: not JSON"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line_with_advice(
    stratalog_topic: str, arguments: list[str], message: str
) -> None:
    assert message in one_line_error(invoke("produce", stratalog_topic, *arguments, stdin=b"tea\n"))


def test_unreachable_broker_is_named() -> None:
    refused = one_line_error(
        invoke("produce", "orders", "-b", "127.0.0.1:1", "--set", "max.block.ms=300", stdin=b"tea\n")
    )
    assert "127.0.0.1:1" in refused
    assert "is a broker running there? start one: stratalog serve, or give --bootstrap-server" in refused


def test_record_that_is_too_large_is_an_error_with_a_count(server: str, stratalog_topic: str) -> None:
    lines = b"tea\n" + bytes(5_000_000)
    refused, note = error_with_a_note(
        invoke("produce", stratalog_topic, "--set", "max.request.size=9000000", stdin=lines)
    )
    assert "stdin, line 2: not delivered" in refused
    assert "max.message.bytes" in refused
    assert (
        f"; send less in a record, or raise the topic's limit: stratalog config set topic {stratalog_topic} " in refused
    )
    assert note.startswith("1 record acknowledged, 1 failed; repair line 2, then continue with it: ... | tail -n +2 | ")
    assert note.endswith(
        f"; or skip it: ... | tail -n +3 | stratalog produce {stratalog_topic} --set max.request.size=9000000"
    )


@pytest.mark.parametrize("lines_before", [1, 2500])
def test_record_past_the_client_limit_names_that_limit(stratalog_topic: str, lines_before: int) -> None:
    lines = b"tea\n" * lines_before + bytes(5000)
    refused, note = error_with_a_note(invoke("produce", stratalog_topic, "--set", "max.request.size=4000", stdin=lines))
    line = lines_before + 1
    assert f"stdin, line {line:,}: not sent: " in refused
    assert "; send less in a record, or raise this producer's limit: --set max.request.size=5109" in refused
    assert "max.message.bytes" not in refused
    assert f"; repair line {line:,}, then continue with it: ... | tail -n +{line} | " in note


def test_record_past_the_limits_of_client_and_topic_names_both(stratalog_topic: str) -> None:
    refused = one_line_error(invoke("produce", stratalog_topic, stdin=bytes(2_000_000)))
    assert "--set max.request.size=2000109, and the topic's, as its max.message.bytes is 1048588: " in refused
    assert f"stratalog config set topic {stratalog_topic} max.message.bytes=2000109" in refused
    enough = ["--set", "max.request.size=2000109"]
    invoke("config", "set", "topic", stratalog_topic, "max.message.bytes=2000109")
    assert invoke("produce", stratalog_topic, *enough, stdin=bytes(2_000_000)).exit_code == 0


def test_invalid_json_is_named_once_with_its_column(stratalog_topic: str) -> None:
    lines = b'{"value": "a"}\n\n{"value": "tea" "key": 1}\n'
    refused, note = error_with_a_note(invoke("produce", stratalog_topic, "--json", "-H", "a=b c", stdin=lines))
    assert "stdin, line 3: not JSON (Expecting ',' delimiter, column 17); " in refused
    command = f"stratalog produce {stratalog_topic} --header 'a=b c' --json"
    assert f"repair line 3, then continue with it: ... | tail -n +3 | {command}; or skip it: " in note


def test_created_topic_is_reported_with_a_similar_one(stratalog_fresh_broker: BrokerProcess) -> None:
    server = stratalog_fresh_broker.bootstrap_servers
    stratalog_fresh_broker.create_topic("orders")
    done = invoke("produce", "ordrs", "-b", server, stdin=b"tea\n" * 3000)
    assert done.exit_code == 0
    assert done.stderr == (
        "stratalog: topic 'ordrs' was created with 1 partition; did you mean 'orders'?\n"
        "stratalog: 3,000 records acknowledged\n"
    )
    assert invoke("produce", "ordrs", "-b", server, stdin=b"tea").stderr == "stratalog: 1 record acknowledged\n"
    created = invoke("produce", "payments", "-b", server, "--acks", "0", stdin=b"tea\n").stderr
    assert created == (
        "stratalog: topic 'payments' was created with 1 partition\nstratalog: 1 record sent without acknowledgement\n"
    )


@pytest.mark.parametrize("count", [1, 2000])
def test_copy_without_by_key_fails_at_the_second_partition(stratalog_fresh_broker: BrokerProcess, count: int) -> None:
    """The target is created by sending, with fewer partitions."""
    server = stratalog_fresh_broker.bootstrap_servers
    lines = [
        b'{"key": "%d", "value": "tea", "partition": %d}' % (number, number % 5) for number in range(count * 5)
    ] + [b""]
    example = next(
        line for line in invoke("produce", "--help").stdout.splitlines() if "consume orders --json |" in line
    )
    arguments = example.partition("| stratalog ")[2].split()
    assert invoke(*arguments, "-b", server, stdin=b"\n".join(lines)).exit_code == 0
    arguments.remove("--by-key")
    refused = invoke(*arguments, "-b", server, stdin=b"\n".join(lines)).stderr
    assert "partition is 1; orders-copy has only partition 0; pass --by-key" in refused
    assert "add-partitions orders-copy 5" in refused


def test_slow_pipe_is_sent_line_by_line_until_an_interrupt(server: str, stratalog_topic: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "produce", stratalog_topic],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"tea\n")
        process.stdin.flush()
        _wait_for_records(server, stratalog_topic, 1)
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == (
            b"stratalog: interrupted; 1 record acknowledged, not sent from line 2 on; continue with line 2: ... | "
            b"tail -n +2 | stratalog produce %b\n" % stratalog_topic.encode()
        )
    assert process.returncode == 130


def test_interrupt_counts_what_was_not_acknowledged(stratalog_fresh_broker: BrokerProcess) -> None:
    stratalog_fresh_broker.create_topic("orders")
    server = stratalog_fresh_broker.bootstrap_servers
    with subprocess.Popen(
        [*COMMAND, "produce", "orders", "-b", server], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"tea\n" * 57)
        process.stdin.flush()
        _wait_for_records(server, "orders", 57)
        dropped = stratalog_fresh_broker.drop(api="Produce")
        process.stdin.write(b"cake\n" * 3)
        process.stdin.flush()
        wait_until(lambda: dropped.met > 0, "the request that gets no answer")
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == (
            b"stratalog: interrupted; 57 records acknowledged, 3 without a response, not sent from line 61 on; "
            b"continue with line 58: ... | tail -n +58 | stratalog produce orders --bootstrap-server %b\n"
            % server.encode()
        )
    assert process.returncode == 130


@pytest.mark.parametrize("count", [1, 2, 5000])
def test_line_with_a_missing_partition_is_refused(server: str, stratalog_topic: str, count: int) -> None:
    lines = b'{"value": "a", "partition": 0}\n' * count + b'{"value": "b", "partition": 9}\n'
    refused, note = error_with_a_note(invoke("produce", stratalog_topic, "--json", stdin=lines))
    line = f"stdin, line {count + 1:,}"
    assert f"{line}: partition is 9; {stratalog_topic} has only partition 0; pass --by-key " in refused
    assert f"10 or more: stratalog topic add-partitions {stratalog_topic} 10" in refused
    before = "1 record acknowledged" if count == 1 else f"{count:,} records acknowledged"
    assert note.startswith(
        f"{before}, not sent from line {count + 1:,} on; repair line {count + 1:,}, then continue with it: "
    )
    assert len(read_topic(server, stratalog_topic, count)) == count


@pytest.mark.stratalog_topic(partitions=2)
def test_many_envelopes_are_sent_like_few(server: str, stratalog_topic: str) -> None:
    """Many envelopes are sent as columns, unless one has headers."""
    lines = [
        b'{"key": "a", "value": {"base64": "/wA="}, "partition": 1, "timestamp": 5, "headers": []}',
        b' {"value": "caf\\u00e9", "partition": 1, "timestamp": -1, "offset": 3} \r',
        b"",
        b'{"key": null, "partition": 1}',
    ]
    expected = [Seen(b"a", b"\xff\x00", (), 1), Seen(None, "café".encode(), (), 1), Seen(None, None, (), 1)]
    produce(stratalog_topic, b"\n".join(lines * 1000), "--json")
    assert read_topic(server, stratalog_topic, 3000) == expected * 1000
    produce(stratalog_topic, b"\n".join([*lines * 1000, b'{"headers": [["h", "1"]], "partition": 1}']), "--json")
    seen = read_topic(server, stratalog_topic, 6001)
    assert seen[3000:] == [*expected * 1000, Seen(None, None, (("h", b"1"),), 1)]


@pytest.mark.stratalog_topic(config={"cleanup.policy": "compact"})
def test_record_without_a_key_for_a_compacted_topic_names_the_options(stratalog_topic: str) -> None:
    refused, note = error_with_a_note(invoke("produce", stratalog_topic, stdin=b"tea\n"))
    assert "stdin, line 1: not delivered" in refused
    assert note.startswith("0 records acknowledged, 1 failed; continue with line 1: ")
    assert "--key-separator" in refused


def _wait_for_records(address: str, topic: str, count: int) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "watcher"})
    try:
        partition = TopicPartition(topic, 0)
        wait_until(lambda: consumer.get_watermark_offsets(partition, 30)[1] >= count, f"{count} records")
    finally:
        consumer.close()
