"""The loop of `stratalog spark sql`: reads statements, runs one after the other, and survives what goes wrong in one.

At a terminal Ctrl-C ends the query that runs, or the line that is typed, and never the prompt. Without one, statements
come from stdin, and the first that fails ends the run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from stratalog.cli.program import complain
from stratalog.cli.sql_completion import Completion, History
from stratalog.cli.sql_statements import Statements

PROMPT, WITHIN = "sql> ", "...> "
HELP = """  SELECT ...;    runs a query: it ends with a semicolon, and may have many lines
  \\d             lists the topics; \\d TOPIC lists its columns
  \\q             ends, as Ctrl-D does
  Ctrl-C         stops the query that runs, or drops what is typed
"""
_CANCEL_SECONDS = 0.5
_PATIENCE_SECONDS = 15.0


class Engine(Protocol):
    """What runs statements."""

    def run(self, statement: str) -> None:
        """And show the result."""

    def cancel(self) -> None:
        """What `run` does in another thread; called again and again until it ends."""

    def describe(self, topic: str) -> None:
        """The topics, or the columns of the one that is named."""

    def explain(self, error: Exception) -> str:
        """An error as one line."""


class Prompt:
    def __init__(self, engine: Engine, completion: Completion, *, is_interactive: bool) -> None:
        self._engine = engine
        self._completion = completion
        self._is_interactive = is_interactive
        self._statements = Statements()

    def run(self) -> bool:
        """Until the end of input. False: a statement from a script failed, and what follows it was not run."""
        return self._interactive() if self._is_interactive else self._script()

    def _interactive(self) -> bool:
        history = History(self._completion)
        try:
            while True:
                try:
                    if not self._take_line():
                        break
                except KeyboardInterrupt:  # at any point between two queries: drop what is typed, keep the prompt
                    self._statements.rest()
                    sys.stdout.write("\n")
        finally:
            history.save()
        return True

    def _take_line(self) -> bool:
        """Read a line and run the statements that it completes. Return False at the end of input."""
        try:
            line = input(WITHIN if self._statements.is_within_one else PROMPT)
        except EOFError:
            sys.stdout.write("\n")
            return False
        if line.strip().startswith("\\") and not self._statements.is_within_one:
            if line.split()[0] == "\\q":
                return False
            self._command(line.strip())
            return True
        if not self._statements.is_within_one and self._is_a_word(line):
            return True
        for statement in self._statements.add(line):
            if not self._execute(statement):
                self._statements.rest()
                break
        return True

    def _script(self) -> bool:
        for line in sys.stdin:
            if line.lstrip().startswith("\\") and not self._statements.is_within_one:
                if line.split()[0] == "\\q":
                    return True
                if not self._command(line.strip()):
                    return False
                continue
            if not self._statements.is_within_one and self._is_a_word(line):
                if "help" not in line.lower():
                    return False
                continue
            if not all(self._execute(statement) for statement in self._statements.add(line)):
                return False
        rest = self._statements.rest()
        return not rest or self._execute(rest)

    def _command(self, line: str) -> bool:
        name, _, rest = line.partition(" ")
        if name == "\\d":
            topic = rest.strip().rstrip(";").strip("`")
            return self._guarded(lambda: self._engine.describe(topic))
        sys.stdout.write(HELP)
        if name not in ("\\?", "\\h"):
            complain(f"there is no command {name}; \\d lists topics, \\q ends")
            return False
        return True

    def _is_a_word(self, line: str) -> bool:
        """Whether it is what other prompts are told, which is no SQL; then how that is said here."""
        word = line.strip().rstrip(";").rstrip().lower()
        if word == "help":
            sys.stdout.write(HELP)
        elif word in ("exit", "quit"):
            complain(f"{word} is no statement; \\q ends, as Ctrl-D does, and \\? lists what there is")
        else:
            return False
        return True

    def _execute(self, statement: str) -> bool:
        self._completion.forget()
        began = time.monotonic()
        done = self._guarded(lambda: self._engine.run(statement))
        sys.stdout.flush()
        sys.stderr.write(f"{time.monotonic() - began:.2f} s\n")
        return done

    def _guarded(self, work: Callable[[], None]) -> bool:
        """Whether it went well. In a thread of its own: what interrupts the wait for it interrupts no talk with Java,
        which would be confused by an answer that nobody took."""
        job = _Job(work)
        try:
            job.run()
        except KeyboardInterrupt:
            for _ in _ticks(_PATIENCE_SECONDS):
                self._engine.cancel()
                if job.has_ended(_CANCEL_SECONDS):
                    break
            if not self._is_interactive:
                raise
            complain("the query is stopped")
            return False
        if isinstance(job.error, BrokenPipeError):
            raise job.error  # who reads the results has gone
        if job.error is not None:
            complain(self._engine.explain(job.error))
            return False
        return True


class _Job:
    """Waits for an event and not for the thread: in Python 3.11 a `join` that was interrupted takes it for ended."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.error: Exception | None = None
        self._work = work
        self._ended = threading.Event()

    def run(self) -> None:
        """Start the work and wait for its end. An interrupt ends the wait, not the work."""
        threading.Thread(target=self._run, name="stratalog-sql", daemon=True).start()
        self._ended.wait()

    def has_ended(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self.error = error
        finally:
            self._ended.set()


def _ticks(seconds: float) -> Iterator[None]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield
