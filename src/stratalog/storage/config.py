"""Settings of a log and of a data directory, under Kafka's names, typed and checked.

`LogConfig(segment_bytes=...)` in Python, `LogConfig.parse({"segment.bytes": "1048576"})` from text. A name that does
not exist and a value of the wrong kind are refused with the name in the message.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from stratalog.errors import ConfigError

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")

Check = Callable[[str, object], object]


def _integer(minimum: int, maximum: int = _LONG_MAX) -> Check:
    def check(name: str, value: object) -> int:
        if isinstance(value, str):
            # int() alone would also take "1_000" and digits of other scripts, which Kafka does not.
            if not _WHOLE_NUMBER.fullmatch(value.strip()):
                raise ConfigError(f"{name} is {value!r}; it must be a whole number")
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}; it must be a whole number")
        if not minimum <= value <= maximum:
            raise ConfigError(f"{name} is {value}; it must lie between {minimum} and {maximum}")
        return value

    return check


def _one_of(*choices: str) -> Check:
    def check(name: str, value: object) -> str:
        if value not in choices:
            raise ConfigError(f"{name} is {value!r}; it must be one of: {', '.join(choices)}")
        return str(value)

    return check


def _setting(default: int | str, check: Check, doc: str) -> Any:
    return field(default=default, metadata={"check": check, "doc": doc})


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """Names, parsing and checking: what both kinds of settings share."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for setting in fields(self):
            checked = setting.metadata["check"](dotted(setting.name), getattr(self, setting.name))
            object.__setattr__(self, setting.name, checked)

    @classmethod
    def names(cls) -> list[str]:
        return [dotted(setting.name) for setting in fields(cls)]

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> Self:
        """From Kafka's dotted names; values may be text."""
        known = cls.names()
        for name in settings:
            if name not in known:
                if any(name in other.names() for other in _Settings.__subclasses__()):
                    raise ConfigError(f"{name!r} is not a setting of {cls.kind}; give it as directory_config=")
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; known are: {', '.join(known)}"
                raise ConfigError(f"{name!r} is not a setting of {cls.kind}{hint}")
        return cls(**{name.replace(".", "_"): value for name, value in settings.items()})

    def settings(self) -> dict[str, int | str]:
        return {dotted(setting.name): getattr(self, setting.name) for setting in fields(self)}


def dotted(name: str) -> str:
    return name.replace("_", ".")


@dataclass(frozen=True, kw_only=True)
class LogConfig(_Settings):
    """The settings of one log (a topic's, in Kafka's terms)."""

    kind: ClassVar[str] = "a log"

    segment_bytes: int = _setting(1024**3, _integer(256, _INT_MAX), "roll a segment that would grow past this")
    segment_ms: int = _setting(7 * 86_400_000, _integer(1), "roll a segment whose first record is older than this")
    segment_jitter_ms: int = _setting(0, _integer(0), "up to this much is taken off segment.ms, per segment")
    segment_index_bytes: int = _setting(10 * 1024**2, _integer(64, _INT_MAX), "size of an index when preallocated")
    index_interval_bytes: int = _setting(4096, _integer(0, _INT_MAX), "log bytes between two index entries")
    max_message_bytes: int = _setting(1024**2 + 12, _integer(0, _INT_MAX), "largest batch that is taken")
    message_timestamp_type: str = _setting(
        "CreateTime", _one_of("CreateTime", "LogAppendTime"), "who sets the records' time"
    )
    cleanup_policy: str = _setting("delete", _one_of("delete"), "what happens to old segments")
    retention_ms: int = _setting(7 * 86_400_000, _integer(-1), "delete segments older than this; -1: never")
    retention_bytes: int = _setting(-1, _integer(-1), "delete old segments while the log is larger; -1: never")
    file_delete_delay_ms: int = _setting(60_000, _integer(0), "time from a segment's deletion to its files'")
    producer_id_expiration_ms: int = _setting(
        86_400_000, _integer(1), "forget an idempotent producer that wrote nothing for so long"
    )
    flush_messages: int = _setting(_LONG_MAX, _integer(1), "flush when this many records are not flushed")
    flush_ms: int = _setting(_LONG_MAX, _integer(0), "flush when the last flush is this long ago")


@dataclass(frozen=True, kw_only=True)
class DirectoryConfig(_Settings):
    """How often the housekeeper of a data directory looks after its logs."""

    kind: ClassVar[str] = "a data directory"

    log_retention_check_interval_ms: int = _setting(300_000, _integer(1), "how often retention is applied")
    log_flush_scheduler_interval_ms: int = _setting(1_000, _integer(1), "how often flush.ms is looked at")
    log_flush_offset_checkpoint_interval_ms: int = _setting(60_000, _integer(1), "how often recovery points are saved")
    max_open_segments: int = _setting(
        4096, _integer(1), "sealed segments that stay open (at most half of ulimit -n); others are opened on use"
    )
