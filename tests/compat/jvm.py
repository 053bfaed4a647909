"""Starts Java programs of Apache Kafka: small, quick to start, always with a time limit.

On two cores a JVM's start is most of what a Kafka tool costs, so the optimising compiler stays off and the
heap small. Every wait here is bounded; a program that does not end in time is killed and reported.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.compat.fetch_kafka import fetch_kafka

TOOL_SECONDS = 60

QUICK_START = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Dfile.encoding=UTF-8",
    "-Dsun.stdout.encoding=UTF-8",  # Java 17 and before
    "-Dstdout.encoding=UTF-8",  # Java 18 and later
    "-Dlog4j2.StatusLogger.level=OFF",
)
SILENT = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=off",)


@dataclass(frozen=True)
class ToolOutput:
    exit_code: int
    stdout: bytes
    stderr: str


class ToolFailedError(Exception):
    """A Kafka tool that ended with an exit code other than 0, or did not end."""


def java_command(main_class: str, arguments: Sequence[str], *, options: Sequence[str] = ()) -> list[str]:
    class_path = str(fetch_kafka() / "*")
    return ["java", *QUICK_START, *options, "-cp", class_path, main_class, *arguments]


def run_tool(
    main_class: str, arguments: Sequence[str], *, stdin: bytes = b"", seconds: float = TOOL_SECONDS
) -> ToolOutput:
    """Run one of Kafka's command line tools until it ends, whatever its exit code."""
    command = java_command(main_class, arguments, options=("-Xmx256m", *SILENT))
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        raise ToolFailedError(f"{main_class} {list(arguments)} did not end within {seconds} s") from late
    return ToolOutput(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace"))


def run_tool_or_fail(main_class: str, arguments: Sequence[str], *, stdin: bytes = b"") -> ToolOutput:
    output = run_tool(main_class, arguments, stdin=stdin)
    if output.exit_code != 0:
        said = output.stdout.decode("utf-8", "replace") + output.stderr
        raise ToolFailedError(f"{main_class} {list(arguments)} ended with {output.exit_code}:\n{said}")
    return output


def joined(files: Sequence[Path]) -> str:
    """Join files with commas, because Kafka's tools take several files as one argument."""
    return ",".join(str(file) for file in files)
