"""What became of the lines that `produce` sent: how many are acknowledged, and from which line to go on if it failed.

Nothing is kept of what is acknowledged, but for what waits behind something that is not.
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stratalog.cli.program import CommandError, spoken
from stratalog.cli.size_limits import described
from stratalog.cli.wording import plural
from stratalog.client.errors import ClientClosedError, RecordTooLargeError
from stratalog.client.producer import Delivery

if TYPE_CHECKING:
    from stratalog.client.arrow_sender import ArrowDelivery


class _Lines(NamedTuple):
    """Lines that were sent at once: one as a record, or many as a table."""

    first: int
    last: int
    delivery: Delivery | ArrowDelivery
    is_in_order: bool  # the batches of a table have its rows one after the other

    def outcomes(self) -> Sequence[tuple[int, bool, Exception | None]]:
        """Rows, whether they are settled, and why they failed."""
        if isinstance(self.delivery, Delivery):
            is_done = self.delivery.done()
            return [(1, is_done, self.delivery.exception() if is_done else None)]
        return self.delivery.outcomes()


@dataclass
class _Counts:
    acknowledged: int = 0
    failed: int = 0
    unanswered: int = 0
    behind: int = 0  # acknowledged, and after the first line that is not
    first_open: int | None = None
    broken: int | None = None  # the first open line, where it failed for what it is


class SendOutcome:
    def __init__(self, name: str, topic: str, *, has_acks: bool = True) -> None:
        self.name = name  # of the input
        self._topic = topic
        self._word = "acknowledged" if has_acks else "sent without acknowledgement"
        self.sent = 0
        self.next_line = 1  # the first that was not sent
        self.is_all_read = False
        self._acknowledged = 0
        self._pending: deque[_Lines] = deque()
        self._has_failed = False

    def note_record(self, line: int, delivery: Delivery) -> None:
        self.sent += 1
        self.next_line = line + 1
        self._pending.append(_Lines(line, line, delivery, True))
        delivery.add_done_callback(self._settle)

    def note_table(self, first: int, last: int, rows: int, delivery: ArrowDelivery, *, is_in_order: bool) -> None:
        self.sent += rows
        self.next_line = last + 1
        self._pending.append(_Lines(first, last, delivery, is_in_order))

    def check(self) -> None:
        """Raise if anything could not be delivered."""
        while self._pending and self._pending[0].delivery.done():
            lines = self._pending[0]
            if lines.delivery.exception() is not None:
                raise self._failure(lines)
            self._acknowledged += sum(rows for rows, _, _ in lines.outcomes())
            self._pending.popleft()
        if self._has_failed:
            raise next(self._failure(one) for one in self._pending if one.delivery.done() and one.delivery.exception())

    def acknowledged(self) -> str:
        return f"{plural(self._count().acknowledged, 'record')} {self._word}"

    def summary(self, command: str, *, can_go_on: bool, broken_line: int | None = None) -> str:
        """How many are acknowledged and how many are not, and how `command` sends the rest. `broken_line` is the one
        that could not be read."""
        counts = self._count()
        said = self.acknowledged()
        said += f", {counts.failed:,} failed" if counts.failed else ""
        said += f", {counts.unanswered:,} without an answer" if counts.unanswered else ""
        if not can_go_on:
            return said
        said += "" if self.is_all_read else f", not sent from line {self.next_line:,} on"
        line = counts.first_open or self.next_line
        said += f"; {self._way_on(line, broken_line or counts.broken, command)}"
        if counts.behind:
            said += f" (of what follows, {plural(counts.behind, 'record')} {self._word} would be sent again)"
        return said

    def _way_on(self, line: int, broken_line: int | None, command: str) -> str:
        if broken_line is None:
            return f"go on with line {line:,}: {self._rest(line)} | {command}"
        if broken_line != line:
            return f"repair line {broken_line:,}, then go on with line {line:,}: {self._rest(line)} | {command}"
        return (
            f"repair line {line:,}, then go on with it: {self._rest(line)} | {command}; or skip it: "
            f"{self._rest(line + 1)} | {command}"
        )

    def _rest(self, line: int) -> str:
        """The lines from this one on: of a file, or of what the user pipes in once more."""
        return f"... | tail -n +{line}" if self.name == "stdin" else f"tail -n +{line} {shlex.quote(self.name)}"

    def _settle(self, delivery: Delivery) -> None:
        """Called in the producer's own thread."""
        if delivery.exception() is not None:
            self._has_failed = True

    def _failure(self, lines: _Lines) -> CommandError:
        error = lines.delivery.exception()
        assert error is not None
        where = f"{self.name}, line {lines.first:,}: not delivered"
        if lines.last > lines.first:
            where = f"{self.name}, lines {lines.first:,} to {lines.last:,}: not all were delivered"
        if isinstance(error, RecordTooLargeError):
            return CommandError(f"{where}: {described(error, self._topic)}")
        return CommandError(f"{where}: {spoken(error)}")

    def _count(self) -> _Counts:
        counts = _Counts(self._acknowledged)
        for lines in self._pending:
            row = 0
            for rows, is_done, error in lines.outcomes():
                if is_done and error is None:
                    counts.acknowledged += rows
                    counts.behind += rows if counts.first_open is not None else 0
                else:
                    if counts.first_open is None:
                        counts.first_open = lines.first + row if lines.is_in_order else lines.first
                        counts.behind = 0 if lines.is_in_order else row
                        if rows == 1 and lines.is_in_order and isinstance(error, RecordTooLargeError):
                            counts.broken = counts.first_open
                    is_given_up = not is_done or isinstance(error, ClientClosedError)
                    counts.unanswered += rows if is_given_up else 0
                    counts.failed += 0 if is_given_up else rows
                row += rows
        return counts
