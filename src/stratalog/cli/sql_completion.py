"""Completion and history of the SQL prompt. Tab completes topics, columns, keywords and the prompt's commands."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from stratalog.pipelines.query import quoted
from stratalog.spark.schema import ALL_COLUMNS

COMMANDS = ("\\d", "\\q", "\\?")
KEYWORDS = re.findall(
    r"\w+",
    """
    SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT JOIN LEFT RIGHT FULL OUTER INNER CROSS ON USING AS AND OR NOT IN
    IS NULL LIKE BETWEEN CASE WHEN THEN ELSE END DISTINCT UNION ALL EXCEPT INTERSECT WITH DESC ASC CAST EXISTS OVER
    PARTITION WINDOW INTERVAL TRUE FALSE EXPLAIN DESCRIBE SHOW VIEWS CREATE TEMPORARY VIEW DROP SET count sum min
    max avg string date timestamp from_json get_json_object to_date date_trunc window
    """,
)
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_HISTORY_LINES = 1000


class Completion:
    """`list_topics` is called only when a name is completed, and at most once per statement."""

    def __init__(self, list_topics: Callable[[], Sequence[str]]) -> None:
        self._list_topics = list_topics
        self._topics: Sequence[str] | None = None

    def forget_topics(self) -> None:
        """Ask for the topics again at the next statement: they may have changed."""
        self._topics = None

    def candidates(self, text: str) -> list[str]:
        """Return what the typed word may become."""
        if text.startswith("\\"):
            return [command for command in COMMANDS if command.startswith(text)]
        if text.startswith("`"):
            return [quoted(topic) for topic in self._known_topics() if quoted(topic).startswith(text)]
        lower = text.lower()
        # A keyword that is also the name of a column is offered once, or Tab could not choose.
        words_by_name = {word.lower(): word for word in (*KEYWORDS, *ALL_COLUMNS)}
        words = [word for name, word in words_by_name.items() if name.startswith(lower)]
        topics = [topic for topic in self._known_topics() if topic.lower().startswith(lower)]
        return [topic if _PLAIN.fullmatch(topic) else quoted(topic) for topic in topics] + words

    def complete(self, text: str, state: int) -> str | None:
        """Return one candidate, or None after the last. readline calls this."""
        candidates = self.candidates(text)
        return candidates[state] if state < len(candidates) else None

    def _known_topics(self) -> Sequence[str]:
        if self._topics is None:
            try:
                self._topics = sorted(self._list_topics())
            except Exception:  # the broker is away, as the next query will report
                self._topics = ()
        return self._topics


class History:
    """The typed lines, kept between runs in the user's state directory. Without readline nothing is kept."""

    def __init__(self, completion: Completion) -> None:
        self.path = history_path()
        try:
            import readline
        except ImportError:
            self._readline = None
            return
        self._readline = readline
        readline.set_history_length(_HISTORY_LINES)
        readline.set_completer_delims(" \t\n,()=<>+*/;'\"")  # without the backquote and characters of topic names
        readline.set_completer(completion.complete)
        readline.parse_and_bind("tab: complete")
        try:
            readline.read_history_file(self.path)
        except OSError:
            pass  # the first run has no history

    def save(self) -> None:
        if self._readline is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._readline.write_history_file(self.path)
            self.path.chmod(0o600)  # queries contain values
        except OSError:
            pass  # a read-only home directory is not worth an error at the end


def history_path() -> Path:
    named = os.environ.get("XDG_STATE_HOME", "")
    state = Path(named) if Path(named).is_absolute() else Path.home() / ".local" / "state"
    return state / "stratalog" / "sql_history"
