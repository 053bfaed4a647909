"""The loop of `stratalog spark sql`: reads statements, runs them one by one, and survives their errors.

At a terminal, Ctrl-C stops the running query or drops the typed line, and never ends the prompt. Without a terminal,
statements come from stdin, and the first that fails ends the run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from stratalog.cli.program import complain
from stratalog.cli.sql_completion import Completion, History
from stratalog.cli.sql_text import Statements

PROMPT, CONTINUATION_PROMPT = "sql> ", "...> "
HELP = """  SELECT ...;    runs a query, which ends with a semicolon and may have many lines
  \\d             lists the topics; \\d TOPIC lists its columns
  \\q             ends, as Ctrl-D does
  Ctrl-C         stops the running query, or drops the typed line
"""
_CANCEL_SECONDS = 0.5
_CANCEL_TIMEOUT = 15.0


class Engine(Protocol):
    """Runs statements."""

    def run(self, statement: str) -> None:
        """Run a statement and show the result."""

    def cancel(self) -> None:
        """Stop `run`, which runs in another thread. Called repeatedly until it ends."""

    def describe(self, topic: str) -> None:
        """Show the columns of a topic, or all topics if it is empty."""

    def explain(self, error: Exception) -> str:
        """Return an error as one line."""


class Prompt:
    def __init__(self, engine: Engine, completion: Completion, *, is_interactive: bool) -> None:
        self._engine = engine
        self._completion = completion
        self._is_interactive = is_interactive
        self._statements = Statements()

    def run(self) -> bool:
        """Read until the end of input. Return False if a statement of a script failed; the rest was not run."""
        return self._run_interactive() if self._is_interactive else self._run_script()

    def _run_interactive(self) -> bool:
        history = History(self._completion)
        try:
            while True:
                try:
                    if not self._take_line():
                        break
                except KeyboardInterrupt:  # between two queries: drop the typed line, keep the prompt
                    self._statements.take_rest()
                    sys.stdout.write("\n")
        finally:
            history.save()
        return True

    def _take_line(self) -> bool:
        """Read a line and run the statements that it completes. Return False at the end of input."""
        try:
            line = input(CONTINUATION_PROMPT if self._statements.is_within_statement else PROMPT)
        except EOFError:
            sys.stdout.write("\n")
            return False
        if self._is_end(line):
            return False
        if not self._run_line(line):
            self._statements.take_rest()
        return True

    def _run_script(self) -> bool:
        for line in sys.stdin:
            if self._is_end(line):
                return True
            if not self._run_line(line):
                return False
        rest = self._statements.take_rest()
        return not rest or self._execute(rest)

    def _is_end(self, line: str) -> bool:
        return not self._statements.is_within_statement and line.split()[:1] == ["\\q"]

    def _run_line(self, line: str) -> bool:
        """Run a command of the prompt, or the statements that the line completes, up to the first that fails."""
        if not self._statements.is_within_statement:
            word = line.strip().rstrip(";").rstrip().lower()
            if word.startswith("\\"):
                return self._run_command(line.strip())
            if word == "help":
                sys.stdout.write(HELP)
                return True
            if word in ("exit", "quit"):  # commands of other prompts
                complain(f"{word} is not a statement; \\q ends, as Ctrl-D does, and \\? shows all commands")
                return False
        return all(self._execute(statement) for statement in self._statements.add(line))

    def _run_command(self, line: str) -> bool:
        name, _, rest = line.partition(" ")
        if name == "\\d":
            topic = rest.strip().rstrip(";").strip("`")
            return self._guard(lambda: self._engine.describe(topic))
        sys.stdout.write(HELP)
        if name not in ("\\?", "\\h"):
            complain(f"there is no command {name}; \\d lists topics, \\q ends")
            return False
        return True

    def _execute(self, statement: str) -> bool:
        self._completion.forget_topics()
        started = time.monotonic()
        succeeded = self._guard(lambda: self._engine.run(statement))
        sys.stdout.flush()
        sys.stderr.write(f"{time.monotonic() - started:.2f} s\n")
        return succeeded

    def _guard(self, work: Callable[[], None]) -> bool:
        """Run something, report its error, and return whether it succeeded. It runs in a thread of its own, so that an
        interrupt does not break off a call to Java, whose response would then confuse the next call."""
        job = _Job(work)
        try:
            job.run()
        except KeyboardInterrupt:
            deadline = time.monotonic() + _CANCEL_TIMEOUT
            while time.monotonic() < deadline:
                self._engine.cancel()
                if job.has_ended(_CANCEL_SECONDS):
                    break
            if not self._is_interactive:
                raise
            complain("the query is stopped")
            return False
        if isinstance(job.error, BrokenPipeError):
            raise job.error  # the reader of the results has gone
        if job.error is not None:
            complain(self._engine.explain(job.error))
            return False
        return True


class _Job:
    """Work in a thread. Its end is an event, because in Python 3.11 an interrupted `join` takes the thread as ended."""

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
