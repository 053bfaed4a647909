"""`stratalog serve`: a broker in this process, until SIGTERM or SIGINT."""

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

from stratalog.cli.program import CommandError
from stratalog.cli.wording import plural

if TYPE_CHECKING:
    from stratalog.broker.broker import Broker
    from stratalog.broker.settings import BrokerConfig

logger = logging.getLogger(__name__)

_HIGHEST_PORT = 65535
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
    host, port = parse_address("--listen", listen, "127.0.0.1:9092")
    metrics_address = None if metrics is None else parse_address("--metrics", metrics, "127.0.0.1:9100")
    if metrics_address == (host, port) and port:
        raise CommandError(f"--metrics is {metrics!r}, the same as --listen; give another port")
    check_data_dir(data_dir)
    from stratalog.broker.settings import BrokerConfig

    config = BrokerConfig.parse(parse_settings(settings or []))
    _use_all_descriptors()
    if asyncio.run(_serve(data_dir, config, host, port, metrics_address)):
        _end_without_threads()


async def _serve(
    data_dir: Path, config: BrokerConfig, host: str, port: int, metrics_address: tuple[str, int] | None
) -> int:
    """Return how many threads have not ended."""
    from stratalog.broker.broker import Broker
    from stratalog.cli.opening_progress import OpeningProgress

    if metrics_address is not None:
        _check_free(*metrics_address)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, _stop, stopping, number)
    try:
        broker = await Broker.start(data_dir, config, host, port, progress=OpeningProgress())
    except OSError as error:
        raise CommandError(f"can't listen on {shown(host, port)}: {_advice(error, '--listen', host)}") from error
    try:
        where = "" if metrics_address is None else await _serve_metrics(broker, *metrics_address)
        typer.echo(
            f"ready on {shown(host, broker.port)}, {_partitions(broker)} in {data_dir}{where}{_told(broker, host)}"
        )
        sys.stdout.flush()
        await stopping.wait()
    finally:
        left_behind = await broker.stop()
        logger.info("stopped, everything is flushed")
    return left_behind


def _end_without_threads() -> None:
    """End the process as a stop does, though a thread still checks what a client sent that is gone."""
    logger.warning("a batch was still being compressed for a client that is gone: it is dropped")
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


def _check_free(host: str, port: int) -> None:
    """Before the data directory is made: the address for metrics is taken when there are some."""
    from stratalog.net.server import bind

    try:
        bind(host, port).close()
    except OSError as error:
        raise _no_metrics(host, port, error) from error


def _no_metrics(host: str, port: int, error: OSError) -> CommandError:
    return CommandError(f"can't serve metrics on {shown(host, port)}: {_advice(error, '--metrics', host)}")


async def _serve_metrics(broker: Broker, host: str, port: int) -> str:
    from stratalog.broker.metrics import MetricsPage
    from stratalog.net.http_page import HttpPage

    page = HttpPage("/metrics", MetricsPage(broker).render)
    try:
        bound = await page.listen(host, port)
    except OSError as error:
        raise _no_metrics(host, port, error) from error
    return f", metrics on http://{shown(host, bound)}/metrics"


def _partitions(broker: Broker) -> str:
    partitions = list(broker.topics.all_partitions())
    offline = sum(partition.is_offline for partition in partitions)
    return plural(len(partitions), "partition") + (f" ({offline} offline: see the log)" if offline else "")


def _told(broker: Broker, host: str) -> str:
    """Where clients are told another address than the one that is listened on."""
    told = broker.address()
    return "" if told == (host, broker.port) else f", clients are told {shown(*told)} (advertised.listeners)"


def _stop(stopping: asyncio.Event, number: signal.Signals) -> None:
    if not stopping.is_set():
        logger.info("stopping (%s)", number.name)
        stopping.set()


def check_data_dir(data_dir: Path) -> None:
    from stratalog.cli.foreign_directories import check_data_directory

    if not str(data_dir).strip() or str(data_dir) == ".":
        raise CommandError("--data-dir is empty, or the current directory; name one, like --data-dir stratalog-data")
    if data_dir.exists() and not data_dir.is_dir():
        raise CommandError(f"--data-dir is {data_dir}, which is a file; give a directory")
    check_data_directory(data_dir)


def parse_address(option: str, text: str, example: str) -> tuple[str, int]:
    if "://" in text:
        raise CommandError(f"{option} is {text!r}; leave out {text.partition('://')[0]}://, as in {example}")
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal():
        raise CommandError(f"{option} is {text!r}; it must be like {example}")
    if int(port) > _HIGHEST_PORT:
        raise CommandError(f"{option} is {text!r}; a port is 0 (any that is free) to {_HIGHEST_PORT}")
    if not host:
        raise CommandError(f"{option} is {text!r}; the host is missing; 0.0.0.0:{port} is all addresses")
    return host.strip("[]"), int(port)


def shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _advice(error: OSError, option: str, host: str) -> str:
    """What to do where an address can't be had."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"the address is in use; stop what uses it, or give another: {option} {shown(host, 0)} is any that is free"
        )
    return error.strerror or str(error)


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
    """A connection takes one, and so does a partition in use; the usual soft limit of 1024 is for programs that use
    select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
