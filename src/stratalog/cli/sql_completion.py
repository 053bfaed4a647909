"""What the Tab key completes at the SQL prompt: topics, columns, keywords, commands of the prompt. And its history."""

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
_MOST_KEPT = 1000


class Completion:
    """`topics`: asks for their names; only when a name is to be completed, and once a statement."""

    def __init__(self, topics: Callable[[], Sequence[str]]) -> None:
        self._ask = topics
        self._topics: Sequence[str] | None = None

    def forget(self) -> None:
        """Topics come and go: the next statement asks anew."""
        self._topics = None

    def candidates(self, text: str) -> list[str]:
        """What the word that is typed may become."""
        if text.startswith("\\"):
            return [command for command in COMMANDS if command.startswith(text)]
        if text.startswith("`"):
            return [quoted(topic) for topic in self._known() if quoted(topic).startswith(text)]
        lower = text.lower()
        # A keyword that is a column's name too would leave Tab with two candidates, and so with none.
        named = {word.lower(): word for word in (*KEYWORDS, *ALL_COLUMNS)}
        words = [word for name, word in named.items() if name.startswith(lower)]
        topics = [topic for topic in self._known() if topic.lower().startswith(lower)]
        return [topic if _PLAIN.fullmatch(topic) else quoted(topic) for topic in topics] + words

    def complete(self, text: str, state: int) -> str | None:
        """As readline asks: the next candidate, None behind the last."""
        found = self.candidates(text)
        return found[state] if state < len(found) else None

    def _known(self) -> Sequence[str]:
        if self._topics is None:
            try:
                self._topics = sorted(self._ask())
            except Exception:  # a broker that is away: the query will say so
                self._topics = ()
        return self._topics


class History:
    """The lines typed, kept between runs in the user's state directory; nothing where there is no readline."""

    def __init__(self, completion: Completion) -> None:
        self.path = history_path()
        try:
            import readline
        except ImportError:
            self._readline = None
            return
        self._readline = readline
        readline.set_history_length(_MOST_KEPT)
        readline.set_completer_delims(" \t\n,()=<>+*/;'\"")  # not the backquote, nor what names of topics may have
        readline.set_completer(completion.complete)
        readline.parse_and_bind("tab: complete")
        try:
            readline.read_history_file(self.path)
        except OSError:
            pass  # the first time

    def save(self) -> None:
        if self._readline is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._readline.write_history_file(self.path)
            self.path.chmod(0o600)  # queries have values in them
        except OSError:
            pass  # a home that can't be written to is no reason to complain at the end


def history_path() -> Path:
    named = os.environ.get("XDG_STATE_HOME", "")
    state = Path(named) if Path(named).is_absolute() else Path.home() / ".local" / "state"
    return state / "stratalog" / "sql_history"
