"""The tables that a query reads, where they can be told without a parser: some, and never a name that is none. Pure."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""(?P<skipped>\s+|--[^\n]*|/\*.*?(?:\*/|$))|(?P<text>'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$))"""
    r"""|(?P<quoted>`(?:[^`]|``)*(?:`|$))|(?P<word>\w+)|(?P<other>.)""",
    re.DOTALL,
)
_NO_TABLES = frozenset(("VALUES", "TABLE", "LATERAL", "STREAM", "JSON", "CSV", "PARQUET", "ORC", "TEXT"))


def tables_of(sql: str) -> list[str]:
    """In their order. A query that defines names of its own, by WITH, has none that can be told."""
    tokens = [match for match in _TOKEN.finditer(sql) if match.lastgroup != "skipped"]
    words = [match[0].upper() if match.lastgroup == "word" else match[0] for match in tokens]
    if not words or words[0] not in ("SELECT", "FROM") or "WITH" in words:
        return []
    found = []
    is_select = [True]  # for each parenthesis that is open: whether a query is in it, and no arguments
    for place, word in enumerate(words):
        after = words[place + 1] if place + 1 < len(words) else ""
        if word == "(":
            is_select.append(after in ("SELECT", "FROM"))
        elif word == ")" and len(is_select) > 1:
            is_select.pop()
        elif word in ("FROM", "JOIN") and is_select[-1] and (place == 0 or words[place - 1] != "DISTINCT"):
            behind = words[place + 2] if place + 2 < len(words) else ""
            if after and behind not in (".", "(", "-") and after not in _NO_TABLES:
                found.append(tokens[place + 1])
    return [
        match[0][1:-1].replace("``", "`") if match.lastgroup == "quoted" else match[0]
        for match in found
        if match.lastgroup in ("quoted", "word")
    ]
