"""Failures of Spark itself with a known cause: the cause and the remedy, in one line.

Spark reports them in a Java trace of a hundred lines. Some it does not report at all: Java exits, and only its stderr
has the reason. Pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from stratalog.errors import StratalogError


class SparkFailedError(StratalogError):
    """Spark itself failed. The message is the cause and the remedy, in one line; Spark's trace is a note below it."""


class KnownFailure(NamedTuple):
    sign: re.Pattern[str]  # matches the output of Spark or Java; its group, if any, is shown with the cause
    cause: str
    remedy: str


_KNOWN = (
    KnownFailure(
        re.compile(r"Python worker failed to connect back"),
        "a Python worker of Spark did not start within ten seconds",
        "the machine may be busy: run it again, with fewer cores (master local[1]) if it fails again; if it always "
        "fails, check that PYSPARK_PYTHON can be run and that nothing blocks connections on 127.0.0.1",
    ),
    KnownFailure(
        re.compile(r"Cannot run program \"([^\"]+)\""),
        "the Python for Spark's workers can't be run",
        "set PYSPARK_PYTHON to a Python that exists on every machine of the cluster",
    ),
    KnownFailure(
        re.compile(r"(Python in worker has different version[^.\n]*)"),
        "workers and driver run different versions of Python",
        "set PYSPARK_PYTHON to the driver's version on every machine",
    ),
    KnownFailure(
        re.compile(r"Service '?([\w ]+?)'? (?:could not bind on a random free port|failed after \d+ retries)"),
        "Spark found no address or port to listen on",
        "set spark.driver.bindAddress and spark.driver.host to an address of this machine (127.0.0.1 for a local "
        "master), and leave spark.driver.port and spark.blockManager.port unset",
    ),
    KnownFailure(
        re.compile(r"UnknownHostException: ([^\s:]+)"),
        "a host name does not resolve",
        "add it to /etc/hosts, or set SPARK_LOCAL_IP and spark.driver.host to an address",
    ),
    KnownFailure(
        re.compile(r"All masters are unresponsive"),
        "the Spark master does not answer",
        "check its address (master spark://HOST:PORT) and that it runs the same version of Spark",
    ),
    KnownFailure(
        re.compile(r"Could not reserve enough space|Initial heap size set to a larger value|Invalid maximum heap size"),
        "Java did not get the memory that Spark needs",
        "lower spark.driver.memory, or stop what else uses memory",
    ),
    KnownFailure(
        re.compile(r"java\.lang\.OutOfMemoryError: ([\w ]+)"),
        "Spark's Java ran out of memory",
        "raise spark.driver.memory (2g, 4g), or read less at a time",
    ),
    KnownFailure(
        re.compile(r"No space left on device"),
        "the disk for Spark's files is full",
        "free some space, or set spark.local.dir to a larger disk",
    ),
    KnownFailure(
        re.compile(r"UnsupportedClassVersionError|Unrecognized VM option|Unrecognized option: (\S+)"),
        "this Java can't run this Spark",
        "set JAVA_HOME to Java 17 or newer, and check spark.driver.extraJavaOptions",
    ),
    KnownFailure(
        re.compile(r"JAVA_GATEWAY_EXITED|Java gateway process exited"),
        "Java exited before Spark had started",
        "its output is below; check JAVA_HOME, and try without settings of your own",
    ),
)


def known_failure(output: str) -> str | None:
    """Return the cause and the remedy of the first known failure in the output, or None."""
    for failure in _KNOWN:
        match = failure.sign.search(output)
        if match is not None:
            detail = f" ({match[1]})" if failure.sign.groups and match[1] else ""
            return f"{failure.cause}{detail}; {failure.remedy}"
    return None


def explained(error: Exception) -> SparkFailedError | None:
    """Return an error that starts with the cause and the remedy, followed by Spark's trace; None for other failures.

    Raise it `from None`, so that Python does not print Spark's trace first.
    """
    line = known_failure(str(error))
    if line is None:
        return None
    failure = SparkFailedError(line)
    failure.add_note(f"\n{type(error).__name__}: {error}")
    return failure
