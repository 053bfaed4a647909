"""What Spark has to say of an error, as one line: without its codes, without Java's stack."""

from __future__ import annotations

import re

# The last line of a traceback that a worker sent: the type with its module, and the message.
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception): (.+)$", re.MULTILINE)
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+")


def first_line(error: BaseException) -> str:
    """What matters of it: what a worker raised, or the first line without Spark's codes."""
    text = str(error)
    raised = _RAISED.findall(text.partition("\nJVM stacktrace:")[0].partition("Driver stacktrace:")[0])
    line = str(raised[-1]) if raised else next(iter(text.strip().splitlines()), type(error).__name__)
    return _SQLSTATE.sub("", _CONDITION.sub("", line)).strip().rstrip(".")
