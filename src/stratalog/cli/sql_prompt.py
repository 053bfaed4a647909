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
        if line.strip().startswith("\\") and not self._statements.is_within_statement:
            if line.split()[0] == "\\q":
                return False
            self._run_command(line.strip())
            return True
        if not self._statements.is_within_statement and self._answer_word(line):
            return True
        for statement in self._statements.add(line):
            if not self._execute(statement):
                self._statements.take_rest()
                break
        return True

    def _run_script(self) -> bool:
        for line in sys.stdin:
            if line.lstrip().startswith("\\") and not self._statements.is_within_statement:
                if line.split()[0] == "\\q":
                    return True
                if not self._run_command(line.strip()):
                    return False
                continue
            if not self._statements.is_within_statement and self._answer_word(line):
                if "help" not in line.lower():
                    return False
                continue
            if not all(self._execute(statement) for statement in self._statements.add(line)):
                return False
        rest = self._statements.take_rest()
        return not rest or self._execute(rest)

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

    def _answer_word(self, line: str) -> bool:
        """Answer words that are commands at other prompts and not SQL. Return whether the line was such a word."""
        word = line.strip().rstrip(";").rstrip().lower()
        if word == "help":
            sys.stdout.write(HELP)
        elif word in ("exit", "quit"):
            complain(f"{word} is not a statement; \\q ends, as Ctrl-D does, and \\? shows all commands")
        else:
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
