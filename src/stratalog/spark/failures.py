"""Failures of Spark itself that have a known cause: what happened and what to do, in one line.

Spark tells them in a Java trace of a hundred lines, and some not at all: Java ends, and only its stderr says why. Pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Failure(NamedTuple):
    sign: re.Pattern[str]  # in what Spark or Java said; its group, if it has one, is shown with the cause
    cause: str
    remedy: str


_KNOWN = (
    Failure(
        re.compile(r"Python worker failed to connect back"),
        "a Python worker of Spark's did not start within ten seconds",
        "the machine is busy: run it again, with fewer cores (master local[1]) if it happens again; if it always does, "
        "check that PYSPARK_PYTHON can be run and that nothing blocks connections on 127.0.0.1",
    ),
    Failure(
        re.compile(r"Cannot run program \"([^\"]+)\""),
        "a Python for Spark's workers can't be run",
        "set PYSPARK_PYTHON to one that every machine of the cluster has",
    ),
    Failure(
        re.compile(r"(Python in worker has different version[^.\n]*)"),
        "workers and driver have different Pythons",
        "set PYSPARK_PYTHON to the driver's version on every machine",
    ),
    Failure(
        re.compile(r"Service '?([\w ]+?)'? (?:could not bind on a random free port|failed after \d+ retries)"),
        "Spark found no address or port to listen on",
        "set spark.driver.bindAddress and spark.driver.host to an address of this machine (127.0.0.1 for a local "
        "master), and leave spark.driver.port and spark.blockManager.port unset",
    ),
    Failure(
        re.compile(r"UnknownHostException: ([^\s:]+)"),
        "the name of a machine does not resolve",
        "add it to /etc/hosts, or set SPARK_LOCAL_IP and spark.driver.host to an address",
    ),
    Failure(
        re.compile(r"All masters are unresponsive"),
        "the Spark master does not answer",
        "check its address (master spark://HOST:PORT) and that it runs the same version of Spark",
    ),
    Failure(
        re.compile(r"Could not reserve enough space|Initial heap size set to a larger value|Invalid maximum heap size"),
        "Java did not get the memory that Spark asked for",
        "lower spark.driver.memory, or stop what else uses memory",
    ),
    Failure(
        re.compile(r"java\.lang\.OutOfMemoryError: ([\w ]+)"),
        "Spark's Java ran out of memory",
        "raise spark.driver.memory (2g, 4g), or read less at a time",
    ),
    Failure(
        re.compile(r"No space left on device"),
        "the disk for Spark's files is full",
        "free some space, or set spark.local.dir to a larger disk",
    ),
    Failure(
        re.compile(r"UnsupportedClassVersionError|Unrecognized VM option|Unrecognized option: (\S+)"),
        "this Java can't run this Spark",
        "set JAVA_HOME to Java 17 or newer, and check spark.driver.extraJavaOptions",
    ),
    Failure(
        re.compile(r"JAVA_GATEWAY_EXITED|Java gateway process exited"),
        "Java ended before Spark was up",
        "what it said is below; check JAVA_HOME, and try without settings of your own",
    ),
)


def known_failure(said: str) -> str | None:
    """The cause with its remedy, of the first known sign in a text; None where nothing is known."""
    for failure in _KNOWN:
        found = failure.sign.search(said)
        if found is not None:
            detail = f" ({found[1]})" if failure.sign.groups and found[1] else ""
            return f"{failure.cause}{detail}; {failure.remedy}"
    return None
