from __future__ import annotations

import pytest

from tests.cli.running import invoke, json_of

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def test_cluster_and_its_brokers_are_shown(empty_server: str) -> None:
    assert invoke("topic", "create", "orders", "--partitions", 3).exit_code == 0
    (cluster,) = json_of("broker")
    (broker,) = cluster["brokers"]
    assert cluster["controller"] == broker["broker"]
    assert f"{broker['host']}:{broker['port']}" == empty_server
    assert broker["apis"] > 30
    (directory,) = broker["log_directories"]
    assert directory["partitions"] >= 3
    assert directory["total_bytes"] > directory["usable_bytes"] > 0
    title, columns, row, of_directories, directory_row = invoke("broker").stdout.splitlines()
    assert title == f"cluster {cluster['cluster_id']}  1 broker, controller {broker['broker']}"
    assert columns.split() == ["broker", "address", "rack", "APIs"]
    assert row.split() == [str(broker["broker"]), empty_server, "-", str(broker["apis"])]
    assert of_directories.split() == ["broker", "log", "directory", "partitions", "size", "free", "volume"]
    assert directory["path"] in directory_row
