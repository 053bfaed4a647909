"""The commands that use a broker, one after the other, with any broker. tests/cli tests each command alone."""

from __future__ import annotations

import json

import pytest
from typer.testing import Result

from tests.cli.running import invoke

pytestmark = pytest.mark.any_broker


def test_records_go_through_topics_and_groups_with_any_broker(bootstrap: str, name: str) -> None:
    def done(*arguments: object, stdin: bytes = b"") -> Result:
        result = invoke(*arguments, "--bootstrap-server", bootstrap, stdin=stdin)
        heard = "stratalog: 4 records acknowledged\n" if arguments[0] == "produce" else ""
        assert (result.exit_code, result.stderr) == (0, heard)
        return result

    done("topic", "create", name, "--partitions", 2, "--set", "retention.ms=-1")
    done("produce", name, "--key-separator", ":", "--compression", "zstd", stdin=b"a:1\nb:2\na:3\n\xff:\xfe\n")
    envelopes = done("consume", name, "--json").stdout_bytes
    assert len(envelopes.splitlines()) == 4

    copy = f"{name}-copy"
    done("topic", "create", copy, "--partitions", 2)
    done("produce", copy, "--json", stdin=envelopes)
    again = done("consume", copy, "--json").stdout_bytes.replace(copy.encode(), name.encode())
    assert sorted(again.splitlines()) == sorted(envelopes.splitlines())

    (topic,) = [json.loads(line) for line in done("topic", "describe", name, "--json").stdout.splitlines()]
    assert topic["settings"] == {"retention.ms": "-1"}
    assert sum(partition["end_offset"] for partition in topic["partitions"]) == 4

    group = f"{name}-group"
    assert len(done("consume", name, "--group", group).stdout_bytes.splitlines()) == 4
    assert json.loads(done("group", "describe", group, "--json").stdout)["lag"] == 0
    done("group", "reset", group, "--to-beginning")
    assert json.loads(done("group", "describe", group, "--json").stdout)["lag"] == 4
    assert group in done("group", "list").stdout
    done("group", "delete", group)
    done("topic", "add-partitions", name, 3)
    done("topic", "alter", name, "--unset", "retention.ms")
    done("topic", "delete", name, copy)
    assert name not in done("topic", "list").stdout
