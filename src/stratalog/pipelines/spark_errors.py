"""Errors of Spark in one line, without its codes and Java's trace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from stratalog.spark.failures import explained, known_failure

# The last line of a traceback from a worker: the type with its module, and the message.
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception): (.+)$", re.MULTILINE)
# The second line of py4j's message for a Java exception.
_THROWN = re.compile(r"^: [\w.$]+: (.+)$", re.MULTILINE)
# A prefix with the id of the query, and the codes of one or several nested errors.
_PREFIX = re.compile(r"^(?:Query \[id = [^\]]*\] terminated with exception: |\[[A-Z0-9_.]+\] )+")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+")
_POSITION = re.compile(r"\.?; line (\d+) pos (\d+);?$")


def first_line(error: BaseException) -> str:
    """Return a known failure of Spark with its remedy, or the message that a worker raised, or else the first line
    without Spark's codes."""
    known = known_failure(str(error))
    if known is not None:
        return known
    text = str(error).partition("\nJVM stacktrace:")[0].partition("Driver stacktrace:")[0]
    lines = _RAISED.findall(text)[-1:] or _THROWN.findall(text)[:1] or text.strip().splitlines()[:1]
    line = _SQLSTATE.sub("", _PREFIX.sub("", lines[0] if lines else type(error).__name__))
    return _POSITION.sub(r" (line \1, pos \2)", line.strip()).rstrip(".; ")


@contextmanager
def failures_explained() -> Iterator[None]:
    """Raise known failures of Spark as SparkFailedError, with cause and remedy before Spark's trace."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        failure = explained(error)
        if failure is None:
            raise
        raise failure from None
