"""Downloads Apache Kafka into .cache/ with Maven.

`python -m tests.compat.fetch_kafka` leaves the jars in `.cache/kafka-4.1.2/libs`. A second call does nothing.
The directory gets its name with one rename, after Maven has succeeded, so an interrupted download leaves nothing that
looks complete. Maven's own settings decide which repository it uses.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KAFKA_VERSION = "4.1.2"
SLF4J_VERSION = "1.7.36"  # the API version that Kafka 4.1.2 uses; slf4j-simple can log to a file
JAVA_AT_LEAST = 17  # required by the broker and the tools of Kafka 4
MAVEN_SECONDS = 600

CACHE = Path(__file__).resolve().parents[2] / ".cache"

KAFKA_ARTIFACTS = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
    f"org.slf4j:slf4j-simple:{SLF4J_VERSION}",
)

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>stratalog.compat</groupId>
  <artifactId>jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""

DEPENDENCY = """\
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>{exclusions}
    </dependency>"""

NOTHING_ELSE = """
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"""


class CannotFetchError(Exception):
    """Something is missing. The message says what to install, for the developer."""


def fetch(name: str, artifacts: tuple[str, ...], *, alone: bool = False) -> Path:
    """Return the directory with the jars of `artifacts` and, unless `alone`, their dependencies. Downloads only
    once."""
    home = CACHE / name
    libs = home / "libs"
    if libs.is_dir():
        return libs
    require_java_and_maven()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=home) as partial_name:
        partial = Path(partial_name)
        (partial / "pom.xml").write_text(pom_for(artifacts, alone))
        run_maven(partial)
        try:
            (partial / "libs").rename(libs)
        except OSError:
            # Another fetch was faster, and its result is the same.
            if not libs.is_dir():
                raise
    return libs


def fetch_kafka() -> Path:
    return fetch(f"kafka-{KAFKA_VERSION}", KAFKA_ARTIFACTS)


def pom_for(artifacts: tuple[str, ...], alone: bool) -> str:
    exclusions = NOTHING_ELSE if alone else ""
    dependencies = []
    for coordinates in artifacts:
        group, artifact, version = coordinates.split(":")
        dependencies.append(DEPENDENCY.format(group=group, artifact=artifact, version=version, exclusions=exclusions))
    return POM.format(dependencies="\n".join(dependencies))


def run_maven(directory: Path) -> None:
    command = ["mvn", "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={directory / 'libs'}"]
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=MAVEN_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotFetchError(f"Maven did not finish within {MAVEN_SECONDS} s") from None
    if done.returncode != 0:
        raise CannotFetchError(f"Maven failed (exit code {done.returncode}):\n{done.stdout}{done.stderr}")


def require_java_and_maven() -> None:
    """Install missing programs if that needs no confirmation (as root on Debian); else raise an error with advice."""
    missing = [package for package, present in needed_packages() if not present]
    if not missing:
        return
    wanted = " and ".join(missing)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise CannotFetchError(
            f"Apache Kafka needs Java {JAVA_AT_LEAST} or newer and Maven. Install {wanted} "
            f"(Debian, Ubuntu: `sudo apt-get install {' '.join(missing)}`) and run this again."
        )
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing],
    ):
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=MAVEN_SECONDS, check=False
        )
        if done.returncode != 0:
            raise CannotFetchError(f"`{' '.join(command)}` failed; install {wanted} by hand:\n{done.stderr}")
    still_missing = [package for package, present in needed_packages() if not present]
    if still_missing:
        raise CannotFetchError(f"installed {wanted}, but {' and '.join(still_missing)} is still not usable")


def needed_packages() -> list[tuple[str, bool]]:
    return [
        ("default-jdk-headless", java_version() >= JAVA_AT_LEAST and shutil.which("javac") is not None),
        ("maven", shutil.which("mvn") is not None),
    ]


def java_version() -> int:
    """Return the major version of the `java` on the path; 0 if there isn't one."""
    if shutil.which("java") is None:
        return 0
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r'version "(\d+)', said.stderr)
    return int(found.group(1)) if found else 0


def main() -> int:
    try:
        libs = fetch_kafka()
    except CannotFetchError as error:
        print(f"fetch_kafka: {error}", file=sys.stderr)
        return 1
    print(f"Apache Kafka {KAFKA_VERSION}: {len(list(libs.glob('*.jar')))} jars in {os.path.relpath(libs)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
