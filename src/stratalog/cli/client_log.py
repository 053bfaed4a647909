"""Messages of clients while a command runs, a line each on stderr: a broker that is away, or back again.

A broker that can't be reached is reported after a moment, because one that is just starting is there before that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stratalog.cli.progress import print_line

CLIENT_LOGGER = "stratalog.client"
_MOMENT = 1.0
# Values of a log record's `event`, as stratalog.client.connections and stratalog.client.producer set them. They are
# repeated here because importing a client takes longer than most commands.
BROKER_AWAY, RECORDS_GIVEN_UP = "broker away", "records given up"


class ClientLogHandler(logging.Handler):
    """Prints warnings, and the messages of the client itself. Messages about groups and fetches are for programs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._away: set[str] = set()
        self._timers: list[threading.Timer] = []

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if event == RECORDS_GIVEN_UP or (record.levelno < logging.WARNING and record.name != CLIENT_LOGGER):
            return  # `produce` counts the records itself
        if event == BROKER_AWAY:
            self._report_away(getattr(record, "address", ""), getattr(record, "reason", ""))
        else:
            self._forget()
            print_line(f"stratalog: {record.getMessage()}")

    def close(self) -> None:
        self._forget()
        super().close()

    def _report_away(self, address: str, reason: str) -> None:
        if address in self._away:
            return
        self._away.add(address)
        line = f"stratalog: waiting for {address}: {reason[:1].lower()}{reason[1:]}"
        timer = threading.Timer(_MOMENT, print_line, [line])
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _forget(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._away.clear()


@contextmanager
def show_client_log() -> Iterator[None]:
    logger = logging.getLogger(CLIENT_LOGGER)
    handler = ClientLogHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()
