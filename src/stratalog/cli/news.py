"""What clients have to say while a command runs: a broker that is away, or back again. One line on stderr for each.

A broker that can't be reached is worth a word only after a moment: one that is just starting is there before that.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stratalog.cli import progress_line
from stratalog.cli.program import printable

_CLIENT = "stratalog.client"
_PRODUCER = "stratalog.client.producer"
_MOMENT = 1.0
_AWAY = re.compile(r"(?P<where>\S+) can't be reached: (?P<why>.*?)(; is a broker .*)?; trying again")


class News(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._waited_for: set[str] = set()
        self._timers: list[threading.Timer] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING and record.name != _CLIENT:
            return  # what goes on in groups and fetches is for programs
        if record.levelno == logging.ERROR and record.name == _PRODUCER and record.exc_info is None:
            return  # records that were given up: `produce` counts them itself
        message = record.getMessage()
        away = _AWAY.fullmatch(message)
        if away is None:
            self._forget()
            say(message)
        elif away["where"] not in self._waited_for:
            self._waited_for.add(away["where"])
            self._say_later(f"waiting for {away['where']}: {away['why'][:1].lower()}{away['why'][1:]}")

    def close(self) -> None:
        self._forget()
        super().close()

    def _say_later(self, line: str) -> None:
        timer = threading.Timer(_MOMENT, say, [line])
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _forget(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._waited_for.clear()


def say(line: str) -> None:
    """A line of its own, also where a progress line stands; that is written again with the next records."""
    sys.stderr.write(f"{progress_line.clearing()}{printable(f'stratalog: {line}')}\n")
    sys.stderr.flush()


@contextmanager
def shown() -> Iterator[None]:
    logger = logging.getLogger(_CLIENT)
    news = News()
    before = logger.level
    logger.addHandler(news)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(news)
        news.close()
