"""SQL as text, without a parser: where statements end, and which tables a query surely reads. Pure."""

from __future__ import annotations

import re

# Semicolons in text, names in backquotes and comments end nothing. An unfinished one reaches to the end.
_TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?(?:\*/|$))|(?P<text>'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$))"""
    r"""|(?P<quoted>`(?:[^`]|``)*(?:`|$))|(?P<space>\s+)|(?P<word>\w+)|(?P<other>.)""",
    re.DOTALL,
)
_NOT_TABLES = frozenset(("VALUES", "TABLE", "LATERAL", "STREAM", "JSON", "CSV", "PARQUET", "ORC", "TEXT"))


class Statements:
    """Takes lines, and returns complete statements without their semicolons."""

    def __init__(self) -> None:
        self._pending = ""

    @property
    def is_within_statement(self) -> bool:
        """True if a statement has begun and not ended."""
        return _has_content(self._pending)

    def add(self, line: str) -> list[str]:
        """Add a line, and return the statements that it ends."""
        self._pending += line if line.endswith("\n") else f"{line}\n"
        statements = []
        current = ""
        for match in _TOKEN.finditer(self._pending):
            if match[0] == ";":
                statements.append(current)
                current = ""
            else:
                current += match[0]
        self._pending = current
        return [statement.strip() for statement in statements if _has_content(statement)]

    def take_rest(self) -> str:
        """Return and drop the statement that has no semicolon after it."""
        rest, self._pending = self._pending, ""
        return rest.strip() if _has_content(rest) else ""


def _has_content(text: str) -> bool:
    return any(match.lastgroup not in ("comment", "space") for match in _TOKEN.finditer(text))


def tables_of(sql: str) -> list[str]:
    """Return the tables that a query surely reads, in order. A query that defines names by WITH has none."""
    tokens = [match for match in _TOKEN.finditer(sql) if match.lastgroup not in ("comment", "space")]
    words = [match[0].upper() if match.lastgroup == "word" else match[0] for match in tokens]
    if not words or words[0] not in ("SELECT", "FROM") or "WITH" in words:
        return []
    tables = []
    holds_query = [True]  # for each open parenthesis: it holds a query, not arguments
    padded = [*words, "", ""]
    for index, word in enumerate(words):
        next_word, second_word = padded[index + 1 : index + 3]
        if word == "(":
            holds_query.append(next_word in ("SELECT", "FROM"))
        elif word == ")" and len(holds_query) > 1:
            holds_query.pop()
        elif word in ("FROM", "JOIN") and holds_query[-1] and words[index - 1 : index] != ["DISTINCT"]:
            is_table = next_word and second_word not in (".", "(", "-") and next_word not in _NOT_TABLES
            tables += [tokens[index + 1]] if is_table else []
    return [
        match[0][1:-1].replace("``", "`") if match.lastgroup == "quoted" else match[0]
        for match in tables
        if match.lastgroup in ("quoted", "word")
    ]
