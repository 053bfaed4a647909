"""`stratalog serve`: a broker in this process, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.program import CommandError

if TYPE_CHECKING:
    from stratalog.broker.broker import Broker
    from stratalog.broker.settings import BrokerConfig

_WORTH_A_LINE = 100
HELP = """Serve a data directory to Kafka clients.

One line that begins with "ready" goes to stdout when clients can connect; logs go to stderr. SIGTERM or Ctrl-C stops
it in order: requests under way are answered, and everything is flushed.

\b
Examples:
  stratalog serve
  stratalog serve --data-dir data --listen 0.0.0.0:9092 --set advertised.listeners=PLAINTEXT://kafka.example:9092
  stratalog serve --set num.partitions=4 --set log.retention.hours=24 --metrics 127.0.0.1:9100
"""


def command(
    data_dir: Annotated[Path, typer.Option("--data-dir", help="Where the logs are; made where it is missing.")] = Path(
        "stratalog-data"
    ),
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Port 0: one that is free.")] = "127.0.0.1:9092",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, by Kafka's name. Repeatable.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus at /metrics.")
    ] = None,
    log_format: Annotated[str, typer.Option(metavar="text|json", help="How logs are written.")] = "text",
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    from stratalog.cli.logs import set_up_logging

    set_up_logging(log_format, log_level)
    host, port = parse_address("--listen", listen)
    metrics_address = None if metrics is None else parse_address("--metrics", metrics)
    from stratalog.broker.settings import BrokerConfig

    config = BrokerConfig.parse(parse_settings(settings or []))
    _use_all_descriptors()
    asyncio.run(_serve(data_dir, config, host, port, metrics_address))


async def _serve(
    data_dir: Path, config: BrokerConfig, host: str, port: int, metrics_address: tuple[str, int] | None
) -> None:
    from stratalog.broker.broker import Broker

    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        broker = await Broker.start(data_dir, config, host, port, progress=_progress)
    except OSError as error:
        raise CommandError(f"can't listen on {host}:{port}: {error.strerror or error}") from error
    try:
        where = "" if metrics_address is None else await _serve_metrics(broker, *metrics_address)
        partitions = sum(1 for _ in broker.topics.all_partitions())
        typer.echo(f"ready on {host}:{broker.port}, {partitions} partitions in {data_dir}{where}")
        sys.stdout.flush()
        await stopping.wait()
    finally:
        await broker.stop()


async def _serve_metrics(broker: Broker, host: str, port: int) -> str:
    from stratalog.broker.metrics import MetricsPage
    from stratalog.net.http_page import HttpPage

    page = HttpPage("/metrics", MetricsPage(broker).render)
    try:
        bound = await page.listen(host, port)
    except OSError as error:
        raise CommandError(f"can't serve metrics on {host}:{port}: {error.strerror or error}") from error
    return f", metrics on http://{host}:{bound}/metrics"


def parse_address(option: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise CommandError(f"{option} is {text!r}; it must be like 127.0.0.1:9092")
    return host.strip("[]"), int(port)


def parse_settings(settings: list[str]) -> dict[str, str]:
    parsed: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise CommandError(f"--set is {setting!r}; it must be like num.partitions=4")
        if name.strip() in parsed:
            raise CommandError(f"--set gives {name.strip()} twice")
        parsed[name.strip()] = value.strip()
    return parsed


def _use_all_descriptors() -> None:
    """A partition and a connection take one each; the usual soft limit of 1024 is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _progress(done: int, total: int) -> None:
    """Of opening the logs, for people who wait: after a crash the tails of all logs are read."""
    if total >= _WORTH_A_LINE and sys.stderr.isatty():
        end = "\n" if done == total else ""
        sys.stderr.write(f"\ropened {done} of {total} partitions{end}")
