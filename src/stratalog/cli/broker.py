"""stratalog broker: the cluster and its brokers, looked at."""

from __future__ import annotations

from stratalog.cli.cluster_options import DEFAULT_SERVER, AsJson, BootstrapServer, admin_config

HELP = """Show the cluster: its id and controller, its brokers with their addresses, and their log directories.

\b
Examples:
  stratalog broker
  stratalog broker --bootstrap-server kafka.example:9092 --json
"""


def command(bootstrap_server: BootstrapServer = DEFAULT_SERVER, as_json: AsJson = False) -> None:
    from stratalog.cli.broker_report import BrokerReport
    from stratalog.cli.output import Output
    from stratalog.client.admin import Admin

    with Admin.from_config(admin_config(bootstrap_server)) as admin:
        report = BrokerReport.of(admin)
    report.show(Output(as_json=as_json))
