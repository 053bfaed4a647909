"""stratalog serve: a broker in this process, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.logs import set_up_logging
from stratalog.cli.options import CommandGroup, option, parse_pairs
from stratalog.cli.program import CommandError
from stratalog.cli.progress import OpeningProgress
from stratalog.cli.wording import pluralize

if TYPE_CHECKING:
    from stratalog.broker.broker import Broker
    from stratalog.broker.settings import BrokerConfig

logger = logging.getLogger(__name__)

_HIGHEST_PORT = 65535

app = CommandGroup()


@app.add("serve")
def serve(
    data_dir: Annotated[
        Path, option("--data-dir", "DIR", "The data directory; created if it is missing.", show_default=True)
    ] = Path("stratalog-data"),
    listen: Annotated[
        str, option("--listen", "HOST:PORT", "The address for clients; port 0 is any free port.", show_default=True)
    ] = "127.0.0.1:9092",
    settings: Annotated[
        list[str] | None, option("--set", "NAME=VALUE", "A setting, by Kafka's name. Repeatable.")
    ] = None,
    metrics: Annotated[
        str | None, option("--metrics", "HOST:PORT", "Serve metrics for Prometheus at /metrics.")
    ] = None,
    log_format: Annotated[
        str, option("--log-format", "text|json", "How the log is written.", show_default=True)
    ] = "text",
    log_level: Annotated[
        str, option("--log-level", "LEVEL", "debug, info, warning or error.", show_default=True)
    ] = "info",
) -> None:
    """Serve a data directory to Kafka clients.

    One line that begins with "ready" is printed to stdout when clients can connect. The log goes to stderr. SIGTERM or
    Ctrl-C stops the broker cleanly: it responds to requests in flight, and flushes everything.

    With zookeeper.connect and node.id, the broker is one of several in a cluster. It gives its partitions to the others
    before it stops.

    \b
    Examples:
      stratalog serve
      stratalog serve --listen 0.0.0.0:9092 --set advertised.listeners=PLAINTEXT://kafka.example:9092
      stratalog serve --set num.partitions=4 --set log.retention.hours=24 --metrics 127.0.0.1:9100
      stratalog serve --data-dir data1 --set zookeeper.connect=127.0.0.1:2181 --set node.id=1
    """
    set_up_logging(log_format, log_level)
    host, port = parse_address("--listen", listen, "127.0.0.1:9092")
    metrics_address = None if metrics is None else parse_address("--metrics", metrics, "127.0.0.1:9100")
    if metrics_address == (host, port) and port:
        raise CommandError(f"--metrics is {metrics!r}, the same as --listen; give another port")
    from stratalog.broker.settings import BrokerConfig
    from stratalog.cli.data_directory import check_data_dir

    check_data_dir(data_dir)
    config = BrokerConfig.parse(parse_pairs("--set", settings, "num.partitions=4"))
    _raise_descriptor_limit()
    if asyncio.run(_serve(data_dir, config, host, port, metrics_address)):
        _exit_without_threads()


async def _serve(
    data_dir: Path, config: BrokerConfig, host: str, port: int, metrics_address: tuple[str, int] | None
) -> int:
    """Return how many threads are still running."""
    from stratalog.broker.broker import Broker

    if metrics_address is not None:
        _check_free(*metrics_address)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, _stop, stopping, number)
    try:
        broker = await Broker.start(data_dir, config, host, port, progress=OpeningProgress())
    except OSError as error:
        raise CommandError(f"can't listen on {_join(host, port)}: {_advice(error, '--listen', host)}") from error
    try:
        metrics = "" if metrics_address is None else await _serve_metrics(broker, *metrics_address)
        advertised = broker.address()
        clients = (
            "" if advertised == (host, broker.port) else (f", clients use {_join(*advertised)} (advertised.listeners)")
        )
        typer.echo(
            f"ready on {_join(host, broker.port)}, {_partitions(broker)} in {data_dir}{metrics}{clients}"
            f"{_cluster(broker)}"
        )
        sys.stdout.flush()
        await stopping.wait()
    finally:
        running_threads = await broker.stop()
        logger.info("stopped, everything is flushed")
    return running_threads


def _exit_without_threads() -> None:
    """Exit with the code of a clean stop, although a thread still checks a batch of a client that has gone."""
    logger.warning("a batch was still being compressed for a client that has gone; it is dropped")
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


def _check_free(host: str, port: int) -> None:
    """Raise if the address for metrics is in use, before the data directory is created."""
    from stratalog.net.server import bind

    try:
        bind(host, port).close()
    except OSError as error:
        raise _no_metrics(host, port, error) from error


def _no_metrics(host: str, port: int, error: OSError) -> CommandError:
    return CommandError(f"can't serve metrics on {_join(host, port)}: {_advice(error, '--metrics', host)}")


async def _serve_metrics(broker: Broker, host: str, port: int) -> str:
    """Return the address of the page, in words for the ready line."""
    from stratalog.broker.metrics import MetricsPage
    from stratalog.net.http_page import HttpPage

    page = HttpPage("/metrics", MetricsPage(broker).render)
    try:
        bound_port = await page.listen(host, port)
    except OSError as error:
        raise _no_metrics(host, port, error) from error
    return f", metrics on http://{_join(host, bound_port)}/metrics"


def _partitions(broker: Broker) -> str:
    partitions = [partition for partition in broker.topics.all_partitions() if partition.is_hosted]
    offline = sum(partition.is_offline for partition in partitions)
    return pluralize(len(partitions), "partition") + (f" ({offline} offline: see the log)" if offline else "")


def _cluster(broker: Broker) -> str:
    """Return the cluster that the broker belongs to, for the ready line; nothing if the broker is alone."""
    if broker.member is None:
        return ""
    membership = broker.membership
    controller = "no controller yet" if membership.controller < 0 else f"controller {membership.controller}"
    return f", broker {membership.node_id} of cluster {membership.cluster_id}, {controller}"


def _stop(stopping: asyncio.Event, number: signal.Signals) -> None:
    if not stopping.is_set():
        logger.info("stopping (%s)", number.name)
        stopping.set()


def parse_address(option_name: str, text: str, example: str) -> tuple[str, int]:
    if "://" in text:
        raise CommandError(f"{option_name} is {text!r}; leave out {text.partition('://')[0]}://, as in {example}")
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal():
        raise CommandError(f"{option_name} is {text!r}; it must be like {example}")
    if int(port) > _HIGHEST_PORT:
        raise CommandError(f"{option_name} is {text!r}; a port is 0 (any free port) to {_HIGHEST_PORT}")
    if not host:
        raise CommandError(f"{option_name} is {text!r}; the host is missing; 0.0.0.0:{port} is all addresses")
    return host.strip("[]"), int(port)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _advice(error: OSError, option_name: str, host: str) -> str:
    """Return why an address can't be used, and what to do next."""
    if error.errno == errno.EADDRINUSE:
        free = f"{option_name} {_join(host, 0)} is any free port"
        return f"the address is in use; stop the process that uses it, or give another: {free}"
    return error.strerror or str(error)


def _raise_descriptor_limit() -> None:
    """Use all descriptors that the system allows: connections and open partitions need them. The usual soft limit of
    1024 is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
