"""What there is to say of a cluster's brokers, for people or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from stratalog.cli import wording
from stratalog.cli.output import QUIET, STRONG, Output
from stratalog.cli.program import printable
from stratalog.cli.tables import print_table
from stratalog.client.admin import Admin, ClusterDescription, LogDir
from stratalog.client.errors import ClientError


@dataclass(frozen=True)
class BrokerReport:
    cluster: ClusterDescription
    apis: Mapping[int, int]  # how many each broker serves; it and the next lack brokers that did not answer
    directories: Mapping[int, Mapping[str, LogDir]]

    @classmethod
    def of(cls, admin: Admin) -> Self:
        cluster = admin.describe_cluster()
        apis = {}
        for node in cluster.nodes:
            try:
                apis[node.id] = len(admin.api_versions(node.id))
            except ClientError:
                continue  # a broker that is away is shown without it
        return cls(cluster, apis, admin.describe_log_dirs(apis).succeeded())

    def show(self, output: Output) -> None:
        if output.as_json:
            output.json(self._as_json())
            return
        cluster = self.cluster
        controller = f"controller {cluster.controller.id}" if cluster.controller else "no controller"
        about = f"  {wording.plural(len(cluster.nodes), 'broker')}, {controller}"
        output.line((f"cluster {printable(cluster.cluster_id)}", STRONG), (about, QUIET))
        rows = [(str(one.id), f"{one.host}:{one.port}", one.rack, self.apis.get(one.id)) for one in cluster.nodes]
        print_table(output, ("broker", "address", "rack", "APIs"), rows, "  ")
        rows_of_directories = [
            (
                str(node),
                one.path,
                len(one.replicas),
                wording.size(_size(one)),
                wording.size(one.usable_bytes) if one.usable_bytes >= 0 else None,
                wording.size(one.total_bytes) if one.total_bytes >= 0 else None,
            )
            for node, found in sorted(self.directories.items())
            for one in found.values()
        ]
        if rows_of_directories:
            columns = ("broker", "log directory", "partitions", "size", "free", "volume")
            print_table(output, columns, rows_of_directories, "  ")
        for node, found in sorted(self.directories.items()):
            for one in found.values():
                if one.error is not None:
                    output.line(printable(f"  {one.path} of broker {node}: {one.error}"))
        away = [str(one.id) for one in cluster.nodes if one.id not in self.apis]
        if away:
            output.line(f"  no answer from broker {', '.join(away)}")

    def _as_json(self) -> dict[str, object]:
        controller = self.cluster.controller
        return {
            "type": "cluster",
            "cluster_id": self.cluster.cluster_id,
            "controller": None if controller is None else controller.id,
            "brokers": [
                {
                    "broker": one.id,
                    "host": one.host,
                    "port": one.port,
                    "rack": one.rack,
                    "apis": self.apis.get(one.id),
                    "log_directories": [
                        {
                            "path": each.path,
                            "error": None if each.error is None else str(each.error),
                            "partitions": len(each.replicas),
                            "size": _size(each),
                            "usable_bytes": each.usable_bytes if each.usable_bytes >= 0 else None,
                            "total_bytes": each.total_bytes if each.total_bytes >= 0 else None,
                        }
                        for each in self.directories.get(one.id, {}).values()
                    ],
                }
                for one in self.cluster.nodes
            ],
        }


def _size(directory: LogDir) -> int:
    return sum(one.size for one in directory.replicas.values())
