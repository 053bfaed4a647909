"""The log of a server on stderr: lines for people, or one JSON object per line for programs."""

from __future__ import annotations

import json
import logging
import sys
import time

from stratalog.cli.program import CommandError

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def set_up_logging(style: str, level: str) -> None:
    if level.lower() not in _LEVELS:
        raise CommandError(f"--log-level is {level!r}; it must be one of: {', '.join(_LEVELS)}")
    formatters: dict[str, logging.Formatter] = {"text": TextFormatter(), "json": JsonFormatter()}
    if style not in formatters:
        raise CommandError(f"--log-format is {style!r}; it must be one of: {', '.join(formatters)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatters[style])
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level.lower()])


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {_one_line(record.getMessage())}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _one_line(message: str) -> str:
    """Escape a message with bytes of a client, so that they can't look like another line of the log."""
    return message.encode("unicode_escape").decode("ascii") if not message.isprintable() else message
