r"""`consume --format`: each record as a template says, with the tokens of `kcat -f`.

    %t topic   %p partition   %o offset   %T timestamp in milliseconds   %h headers, as name=value,name=value
    %k key     %s value       %K and %S their lengths in bytes, -1 for null     %% a percent sign

\n, \t, \r, \0, \xff and \\ have their meaning in C. No newline is added.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from stratalog.cli.options import unescape
from stratalog.cli.program import CommandError

if TYPE_CHECKING:
    from stratalog.client.consumer import ConsumerRecord

_Piece: TypeAlias = "Callable[[ConsumerRecord], bytes]"


def _headers(record: ConsumerRecord) -> bytes:
    return b",".join(b"%b=%b" % (name.encode(), b"NULL" if value is None else value) for name, value in record.headers)


def _length(content: bytes | None) -> bytes:
    return b"%d" % (-1 if content is None else len(content))


_TOKENS: dict[str, _Piece] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "k": lambda record: record.key or b"",
    "K": lambda record: _length(record.key),
    "s": lambda record: record.value or b"",
    "S": lambda record: _length(record.value),
    "h": _headers,
    "%": lambda _: b"%",
}


class RecordTemplate:
    def __init__(self, template: str) -> None:
        self._pieces: list[bytes | _Piece] = []
        for literal, token in re.findall(r"([^%]+)|(%.?)", template, re.DOTALL):
            if literal:
                self._pieces.append(unescape("--format", literal))
            elif token[1:] in _TOKENS:
                self._pieces.append(_TOKENS[token[1:]])
            else:
                known = ", ".join(f"%{name}" for name in _TOKENS)
                problem = f"has {token!r}, which is not known" if len(token) > 1 else "ends with a single %"
                raise CommandError(f"--format {problem}; give one of {known}")

    def write(self, record: ConsumerRecord) -> bytes:
        return b"".join([piece if isinstance(piece, bytes) else piece(record) for piece in self._pieces])
