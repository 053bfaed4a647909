"""stratalog broker: show the cluster and its brokers."""

from __future__ import annotations

from stratalog.cli.options import AsJson, BrokerAddress, CommandGroup
from stratalog.cli.output import QUIET, STRONG, Columns, Output, Row, size, text
from stratalog.cli.wording import pluralize, printable
from stratalog.client.admin import Admin
from stratalog.client.errors import ClientError

app = CommandGroup()


@app.add("broker")
def broker(server: BrokerAddress, as_json: AsJson = False) -> None:
    """Show the cluster: its id and controller, its brokers and their log directories.

    \b
    Examples:
      stratalog broker
      stratalog broker --bootstrap-server kafka.example:9092 --json
    """
    with server.admin() as admin:
        cluster = _describe(admin)
    output = Output(as_json=as_json)
    if as_json:
        output.json(cluster)
    else:
        _show(output, cluster)


def _describe(admin: Admin) -> Row:
    cluster = admin.describe_cluster()
    apis = {}
    for node in cluster.nodes:
        try:
            apis[node.id] = len(admin.api_versions(node.id))
        except ClientError:
            continue  # a broker that does not respond is shown without it
    directories = admin.describe_log_dirs(apis).succeeded()
    return {
        "type": "cluster",
        "cluster_id": cluster.cluster_id,
        "controller": None if cluster.controller is None else cluster.controller.id,
        "brokers": [
            {
                "broker": node.id,
                "host": node.host,
                "port": node.port,
                "rack": node.rack,
                "apis": apis.get(node.id),
                "log_directories": [
                    {
                        "path": directory.path,
                        "error": None if directory.error is None else str(directory.error),
                        "partitions": len(directory.replicas),
                        "size": sum(replica.size for replica in directory.replicas.values()),
                        "usable_bytes": directory.usable_bytes if directory.usable_bytes >= 0 else None,
                        "total_bytes": directory.total_bytes if directory.total_bytes >= 0 else None,
                    }
                    for directory in directories.get(node.id, {}).values()
                ],
            }
            for node in cluster.nodes
        ],
    }


def _show(output: Output, cluster: Row) -> None:
    brokers = cluster["brokers"]
    controller = "no controller" if cluster["controller"] is None else f"controller {cluster['controller']}"
    about = f"  {pluralize(len(brokers), 'broker')}, {controller}"
    output.line((f"cluster {printable(cluster['cluster_id'])}", STRONG), (about, QUIET))
    columns: Columns = {
        "broker": text("broker"),
        "address": lambda node: f"{node['host']}:{node['port']}",
        "rack": "rack",
        "APIs": "apis",
    }
    output.rows(brokers, columns, indent=2)
    directories = [{"broker": node["broker"], **directory} for node in brokers for directory in node["log_directories"]]
    columns = {
        "broker": text("broker"),
        "log directory": "path",
        "partitions": "partitions",
        "size": size("size"),
        "free": size("usable_bytes"),
        "volume": size("total_bytes"),
    }
    output.rows(directories, columns, indent=2)
    for directory in directories:
        if directory["error"] is not None:
            output.line(printable(f"  {directory['path']} of broker {directory['broker']}: {directory['error']}"))
    silent = [str(node["broker"]) for node in brokers if node["apis"] is None]
    if silent:
        output.line(f"  no response from broker {', '.join(silent)}")
