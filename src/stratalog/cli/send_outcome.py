"""The outcome of the lines that `produce` sent: how many are acknowledged, and from which line to continue after a
failure.

Nothing is kept of acknowledged lines, except of those after a line that is not acknowledged.
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stratalog.cli.advice import explain, explain_too_large
from stratalog.cli.program import CommandError
from stratalog.cli.wording import pluralize
from stratalog.client.errors import ClientClosedError, RecordTooLargeError
from stratalog.client.producer import Delivery

if TYPE_CHECKING:
    from stratalog.client.arrow_sender import ArrowDelivery


class _Lines(NamedTuple):
    """Lines that were sent together: one as a record, or many as a table."""

    first: int
    last: int
    delivery: Delivery | ArrowDelivery
    is_in_order: bool  # the table's batches have its rows one after the other

    def outcomes(self) -> Sequence[tuple[int, bool, Exception | None]]:
        """Return numbers of rows, whether they are settled, and why they failed."""
        if isinstance(self.delivery, Delivery):
            is_done = self.delivery.done()
            return [(1, is_done, self.delivery.exception() if is_done else None)]
        return self.delivery.outcomes()


@dataclass
class _Counts:
    acknowledged: int = 0
    failed: int = 0
    unanswered: int = 0
    repeated: int = 0  # acknowledged, but after the first line that is not
    first_open: int | None = None
    broken: int | None = None  # the first open line, if its content is why it failed


class SendOutcome:
    def __init__(self, name: str, topic: str, *, has_acks: bool = True) -> None:
        """`name` is the input's."""
        self.name = name
        self._topic = topic
        self._fate = "acknowledged" if has_acks else "sent without acknowledgement"
        self.sent = 0
        self.next_line = 1  # the first that is not sent
        self.is_input_read = False
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
            failed = (lines for lines in self._pending if lines.delivery.done() and lines.delivery.exception())
            raise self._failure(next(failed))

    def acknowledged(self) -> str:
        return f"{pluralize(self._count().acknowledged, 'record')} {self._fate}"

    def summary(self, command: str, *, can_continue: bool, broken_line: int | None = None) -> str:
        """Return how many records are acknowledged and how many are not, and how `command` sends the rest.
        `broken_line` could not be read."""
        counts = self._count()
        summary = self.acknowledged()
        summary += f", {counts.failed:,} failed" if counts.failed else ""
        summary += f", {counts.unanswered:,} without a response" if counts.unanswered else ""
        if not can_continue:
            return summary
        summary += "" if self.is_input_read else f", not sent from line {self.next_line:,} on"
        line = counts.first_open or self.next_line
        summary += f"; {self._continuation(line, broken_line or counts.broken, command)}"
        if counts.repeated:
            summary += f" (of what follows, {pluralize(counts.repeated, 'record')} {self._fate} would be sent again)"
        return summary

    def _continuation(self, line: int, broken_line: int | None, command: str) -> str:
        if broken_line is None:
            return f"continue with line {line:,}: {self._rest(line)} | {command}"
        if broken_line != line:
            return f"repair line {broken_line:,}, then continue with line {line:,}: {self._rest(line)} | {command}"
        return (
            f"repair line {line:,}, then continue with it: {self._rest(line)} | {command}; or skip it: "
            f"{self._rest(line + 1)} | {command}"
        )

    def _rest(self, line: int) -> str:
        """Return the command that prints a file from this line on, or the input that the user pipes in again."""
        return f"... | tail -n +{line}" if self.name == "stdin" else f"tail -n +{line} {shlex.quote(self.name)}"

    def _settle(self, delivery: Delivery) -> None:
        """Note a failure. The producer's I/O thread calls this."""
        if delivery.exception() is not None:
            self._has_failed = True

    def _failure(self, lines: _Lines) -> CommandError:
        error = lines.delivery.exception()
        assert error is not None
        subject = f"{self.name}, line {lines.first:,}: not delivered"
        if lines.last > lines.first:
            subject = f"{self.name}, lines {lines.first:,} to {lines.last:,}: not all were delivered"
        if isinstance(error, RecordTooLargeError):
            return CommandError(f"{subject}: {explain_too_large(error, self._topic)}")
        return CommandError(f"{subject}: {explain(error)}")

    def _count(self) -> _Counts:
        counts = _Counts(self._acknowledged)
        for lines in self._pending:
            row = 0
            for rows, is_done, error in lines.outcomes():
                if is_done and error is None:
                    counts.acknowledged += rows
                    counts.repeated += rows if counts.first_open is not None else 0
                else:
                    if counts.first_open is None:
                        counts.first_open = lines.first + row if lines.is_in_order else lines.first
                        counts.repeated = 0 if lines.is_in_order else row
                        if rows == 1 and lines.is_in_order and isinstance(error, RecordTooLargeError):
                            counts.broken = counts.first_open
                    is_open = not is_done or isinstance(error, ClientClosedError)
                    counts.unanswered += rows if is_open else 0
                    counts.failed += 0 if is_open else rows
                row += rows
        return counts
