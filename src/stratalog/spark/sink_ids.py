"""The names that a sink has at the broker: its own transactional id, those of its tasks' attempts, and its group.

All transactions of a sink have to lie in one partition of `__transaction_state`, as one append ends them all. Which
partition an id lies in is up to its hash, Java's String.hashCode, so each id of a task ends with seven letters that
give it the hash of the sink's own. That holds for any number of partitions. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

_PREFIX = "stratalog-spark-"
_BITS = 2**32
_BASE = 31  # of the hash, and so of the seven letters: 31 of them, from A on
_LETTERS = 7  # 31**7 is more than 2**32
_FIRST = ord("A")


@dataclass(frozen=True)
class SinkIds:
    name: str  # without a slash

    @property
    def own(self) -> str:
        """The transactional id that batches are decided with."""
        return _PREFIX + self.name

    @property
    def group(self) -> str:
        """Whose committed offset says which batch is next."""
        return _PREFIX + self.name

    @property
    def prefix(self) -> str:
        """What the ids of all tasks begin with, and of no other sink."""
        return f"{_PREFIX}{self.name}/"

    def attempt(self, partition: int, attempt: int, part: int) -> str:
        """Of a task's attempt; `part`: one that takes long has several. The next batch uses it again, which ends
        what an attempt that died has left open."""
        return with_hash_of(f"{self.prefix}{partition}-{attempt}-{part}-", self.own)


def java_hash(text: str) -> int:
    number = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        number = (_BASE * number + unit) % _BITS
    return number


def with_hash_of(text: str, other: str) -> str:
    """`text` with seven letters behind it, that has the hash of `other`."""
    wanted = java_hash(other) - java_hash(text) * _BASE**_LETTERS
    wanted -= sum(_FIRST * _BASE**place for place in range(_LETTERS))
    left = wanted % _BITS
    letters = []
    for place in reversed(range(_LETTERS)):
        digit, left = divmod(left, _BASE**place)
        letters.append(chr(_FIRST + digit))
    return text + "".join(letters)
