"""The names of a sink at the broker: its transactional id, those of its tasks' attempts, and its group. Pure.

All transactions of a sink must be in one partition of `__transaction_state`, because one append ends them all. The hash
of a transactional id, Java's String.hashCode, determines its partition. So each id of a task ends with seven letters
that give it the same hash as the sink's id. This works for any number of partitions.
"""

from __future__ import annotations

from dataclasses import dataclass

_PREFIX = "stratalog-spark-"
_BITS = 2**32
_BASE = 31  # of the hash, and of the seven letters, which are digits of this base from A on
_LETTERS = 7  # 31**7 is more than 2**32
_FIRST = ord("A")


@dataclass(frozen=True)
class SinkIds:
    name: str  # without a slash

    @property
    def own(self) -> str:
        """The transactional id with which the driver decides batches."""
        return _PREFIX + self.name

    @property
    def group(self) -> str:
        """The group whose committed offset is the number of the next batch."""
        return _PREFIX + self.name

    @property
    def prefix(self) -> str:
        """The common prefix of the ids of all tasks. Other sinks have other prefixes."""
        return f"{_PREFIX}{self.name}/"

    def attempt(self, partition: int, attempt: int, part: int) -> str:
        """Return the transactional id of a task's attempt. A long attempt has several parts. The next batch uses the
        same id, which aborts what a dead attempt has left open."""
        return with_hash_of(f"{self.prefix}{partition}-{attempt}-{part}-", self.own)


def java_hash(text: str) -> int:
    number = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        number = (_BASE * number + unit) % _BITS
    return number


def with_hash_of(text: str, other: str) -> str:
    """Append seven letters to `text`, so that it gets the hash of `other`."""
    difference = java_hash(other) - java_hash(text) * _BASE**_LETTERS
    difference -= sum(_FIRST * _BASE**exponent for exponent in range(_LETTERS))
    rest = difference % _BITS
    letters = []
    for exponent in reversed(range(_LETTERS)):
        digit, rest = divmod(rest, _BASE**exponent)
        letters.append(chr(_FIRST + digit))
    return text + "".join(letters)
