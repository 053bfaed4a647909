"""What Spark has to say of an error, as one line: without its codes, without Java's stack."""

from __future__ import annotations

import re

from stratalog.spark.failures import known_failure

# The last line of a traceback that a worker sent: the type with its module, and the message.
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception): (.+)$", re.MULTILINE)
# What py4j tells of an exception of Java's, in its second line.
_THROWN = re.compile(r"^: [\w.$]+: (.+)$", re.MULTILINE)
# Before what matters: which query it was, and the code of the error, or of several around each other.
_BEFORE = re.compile(r"^(?:Query \[id = [^\]]*\] terminated with exception: |\[[A-Z0-9_.]+\] )+")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+")
_PLACE = re.compile(r"\.?; line (\d+) pos (\d+);?$")


def first_line(error: BaseException) -> str:
    """What matters of it: a known failure of Spark's with its remedy, or what a worker raised, or the first line
    without Spark's codes."""
    known = known_failure(str(error))
    if known is not None:
        return known
    text = str(error).partition("\nJVM stacktrace:")[0].partition("Driver stacktrace:")[0]
    told = _RAISED.findall(text)[-1:] or _THROWN.findall(text)[:1] or text.strip().splitlines()[:1]
    line = _SQLSTATE.sub("", _BEFORE.sub("", told[0] if told else type(error).__name__))
    return _PLACE.sub(r" (line \1, pos \2)", line.strip()).rstrip(".; ")
