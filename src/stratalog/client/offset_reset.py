"""auto.offset.reset: where to begin in a partition without a position, or with a position that no longer exists.

Its values are `earliest`, `latest`, `none` (an error), and `by_duration:P7D`: records not older than that (KIP-1106).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from stratalog.errors import ConfigError
from stratalog.settings import Values, ValueType

EARLIEST = -2  # in ListOffsets, the timestamps that stand for the start and the end
LATEST = -1

_BY_DURATION = "by_duration:"
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)


@dataclass(frozen=True)
class OffsetReset:
    """A value of auto.offset.reset: a `timestamp` (EARLIEST or LATEST), a duration `back_ms` before now, or neither,
    which is an error."""

    name: str
    timestamp: int | None = None
    back_ms: int | None = None

    @property
    def is_error(self) -> bool:
        return self.timestamp is None and self.back_ms is None

    def timestamp_at(self, now_ms: int) -> int:
        """Return the timestamp to look up with ListOffsets."""
        if self.back_ms is not None:
            return max(0, now_ms - self.back_ms)
        assert self.timestamp is not None
        return self.timestamp


TO_BEGINNING = OffsetReset("earliest", EARLIEST)
TO_END = OffsetReset("latest", LATEST)
# librdkafka's synonyms are accepted too.
_NAMED = {
    "earliest": TO_BEGINNING,
    "smallest": TO_BEGINNING,
    "beginning": TO_BEGINNING,
    "latest": TO_END,
    "largest": TO_END,
    "end": TO_END,
    "none": OffsetReset("none"),
    "error": OffsetReset("none"),
}


def parse_reset(text: str, name: str = "auto.offset.reset") -> OffsetReset:
    if text in _NAMED:
        return _NAMED[text]
    if text.startswith(_BY_DURATION):
        duration = _DURATION.fullmatch(text.removeprefix(_BY_DURATION))
        if duration is not None and any(duration.groups()):
            parts = {unit: float(value) for unit, value in duration.groupdict().items() if value}
            return OffsetReset(text, back_ms=timedelta(**parts) // timedelta(milliseconds=1))
    raise ConfigError(
        f"{name} is {text!r}; it must be earliest, latest, none, or by_duration:P7D (an ISO 8601 duration)"
    )


def offset_reset() -> Values:
    def check(name: str, value: object) -> str:
        if not isinstance(value, str):
            raise ConfigError(f"{name} is {value!r}; it must be a string")
        return parse_reset(value, name).name

    return Values(ValueType.STRING, check, "earliest, latest, none, by_duration:<ISO 8601 duration>")
