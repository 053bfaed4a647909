"""Lines of SQL put together to statements, each of which ends with a semicolon. Pure."""

from __future__ import annotations

import re

# What may hold a semicolon that ends nothing: text, names in backquotes, comments. Unfinished ones reach to the end.
_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)|`[^`]*(?:`|$)|--[^\n]*|/\*.*?(?:\*/|$)|;|[^'"`;/-]+|.""",
    re.DOTALL,
)
_COMMENT = ("--", "/*")


class Statements:
    """Take lines in, and give whole statements out, without the semicolon."""

    def __init__(self) -> None:
        self._pending = ""

    @property
    def is_within_one(self) -> bool:
        """Whether a statement has begun that has not ended."""
        return _has_content(self._pending)

    def add(self, line: str) -> list[str]:
        """The statements that this line ends, in their order."""
        self._pending += line if line.endswith("\n") else f"{line}\n"
        found = []
        current = ""
        for match in _TOKEN.finditer(self._pending):
            if match[0] == ";":
                found.append(current)
                current = ""
            else:
                current += match[0]
        self._pending = current
        return [statement.strip() for statement in found if _has_content(statement)]

    def rest(self) -> str:
        """What has no semicolon behind it; nothing is pending then."""
        rest, self._pending = self._pending, ""
        return rest.strip() if _has_content(rest) else ""


def _has_content(text: str) -> bool:
    return any(not token.startswith(_COMMENT) and token.strip() for token in _TOKEN.findall(text))
