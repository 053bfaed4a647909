"""The tests for mutation testing: their ids, the lines that each executes, and a copy of the tree to run them in.

The user's tree is never changed: each worker has a copy in a temporary directory, with the compiled kernels.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import coverage

from bench.mutations import Mutation

ROOT = Path(__file__).parent.parent
COPIED = ("src", "tests", "bench", "pyproject.toml", "setup.py", "README.md")
BUILD_LIMIT = 600.0  # seconds
REFUSALS = ("CompileError", "failed with exit code")  # the messages of Cython and of the C compiler
BUILD_ONE = """
import runpy, sys
import Cython.Build
cythonize, name = Cython.Build.cythonize, sys.argv.pop(1)
def only(extensions, **settings):
    chosen = [extension for extension in extensions if extension.name == name]
    for extension in chosen:
        extension.extra_compile_args = ["-O1"]  # compiles in half the time
    return cythonize(chosen, **{**settings, "nthreads": 0, "force": True})
Cython.Build.cythonize = only
sys.argv[0] = "setup.py"
runpy.run_path("setup.py", run_name="__main__")
"""


@dataclass
class Knowledge:
    """The results of running the tests on the unchanged tree."""

    seconds: dict[str, float] = field(default_factory=dict)  # by test, only tests that pass
    unusable: list[str] = field(default_factory=list)  # tests that fail or are skipped
    executed_by: dict[str, dict[int, list[str]]] = field(default_factory=dict)  # path: line: tests, files, or ""

    def tests_of(self, folders: tuple[str, ...]) -> list[str]:
        return [test for test in self.seconds if _is_under(test, folders)]

    def tests_for(self, mutation: Mutation, folders: tuple[str, ...]) -> list[str]:
        """Return the tests of these folders that can notice the mutation, the fastest first."""
        own = self.tests_of(folders)
        if mutation.path.endswith(".pyx"):
            kernel = Path(mutation.path).stem.strip("_")
            return self._fastest_first(own, kernel)
        lines = self.executed_by.get(mutation.path, {})
        statement = range(mutation.first_line, mutation.last_line + 1)
        contexts = {context for line in statement for context in lines.get(line, [])}
        if not mutation.at_import and "" not in contexts:
            own = [test for test in own if test in contexts or test.partition("::")[0] in contexts]
        return self._fastest_first(own)

    def _fastest_first(self, tests: list[str], kernel: str = "") -> list[str]:
        """Sort the tests by their time. Tests of a file stay together, because they share brokers, and files that name
        the kernel come first."""
        files: dict[str, float] = defaultdict(float)
        for test in tests:
            files[test.partition("::")[0]] += self.seconds[test]
        named = {file for file in files if kernel and kernel in (ROOT / file).read_text()}

        def rank(test: str) -> tuple[bool, float, str, float]:
            file = test.partition("::")[0]
            return file not in named, files[file], file, self.seconds[test]

        return sorted(tests, key=rank)


class Tree:
    """A copy of the tree, with one mutant at a time."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.root = directory / "tree"
        self._seed = seed
        self._notes = directory
        self._run_id = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        self._writes = 0
        self.root.mkdir(parents=True)
        ignored = shutil.ignore_patterns("__pycache__", ".*", "reports", "*.egg-info", "*.c")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.root / name, ignore=ignored)
            else:
                shutil.copy2(source, self.root / name)

    def learn(self, folder: str, sources: list[str], knowledge: Knowledge) -> None:
        """Run the tests of a folder or file with coverage, and add the results to `knowledge`."""
        times, data_file = self._notes / "times.json", self._notes / "coverage"
        for path in (times, data_file):
            path.unlink(missing_ok=True)
        include = ",".join(
            str(self.root / source / "*" if (ROOT / source).is_dir() else self.root / source) for source in sources
        )
        tracer = ["-m", "coverage", "run", f"--data-file={data_file}", f"--include={include}"]
        code, output = self._run([*tracer, *self._pytest(), folder], {"MUTANTS_TIMES": str(times)}, None)
        if not times.exists() or code not in (0, 1):
            raise RuntimeError(f"can't run the tests in {folder}; pytest's exit code is {code}:\n{output[-3000:]}")
        recorded = json.loads(times.read_text())
        knowledge.seconds.update(recorded["usable"])
        knowledge.unusable.extend(recorded["unusable"])
        data = coverage.CoverageData(str(data_file))
        data.read()
        for file in data.measured_files():
            known = knowledge.executed_by.setdefault(str(Path(file).relative_to(self.root)), {})
            for line, contexts in data.contexts_by_lineno(file).items():
                known[line] = [*known.get(line, []), *contexts]

    def run_tests(self, tests: list[str], limit: float) -> tuple[int | None, str]:
        """Run these tests until one fails. Return pytest's exit code, or None after a timeout, and the test that
        failed."""
        selection, failed = self._notes / "selection.json", self._notes / "failed"
        selection.write_text(json.dumps(tests))
        failed.unlink(missing_ok=True)
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        variables = {"MUTANTS_SELECTION": str(selection), "MUTANTS_FAILED": str(failed)}
        code, _ = self._run([*self._pytest(), "-x", *files], variables, limit)
        return code, failed.read_text() if failed.exists() else ""

    def build(self, path: str) -> bool:
        """Compile one kernel. Return False if the compiler refuses it."""
        name = path.removeprefix("src/").removesuffix(".pyx").replace("/", ".")
        code, output = self._run(["-c", BUILD_ONE, name, "build_ext", "--inplace", "--force"], {}, BUILD_LIMIT)
        if code not in (0, None) and not any(complaint in output for complaint in REFUSALS):
            raise RuntimeError(f"can't compile {path}, but not because of the mutant:\n{output[-3000:]}")
        return code == 0

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def write(self, path: str, source: bytes) -> None:
        """Write a file with a unique modification time, so that Python does not use the cached bytecode of an earlier
        mutant."""
        (self.root / path).write_bytes(source)
        self._writes += 1
        os.utime(self.root / path, (self._writes, self._writes))

    def compiled(self, path: str) -> Path:
        return next((self.root / path).parent.glob(f"{Path(path).stem}.*.so"))

    def stop(self) -> None:
        """Kill the processes that run, and let none start any more. Any thread may call it."""
        self._stopped.set()
        self._kill()

    def _pytest(self) -> list[str]:
        options = ["-p", "bench.mutants_plugin", "-p", "no:cacheprovider", "--tb=no", f"--hypothesis-seed={self._seed}"]
        return ["-m", "pytest", *options, f"--basetemp={self._notes / 'tmp'}"]

    def _run(self, arguments: list[str], variables: dict[str, str], limit: float | None) -> tuple[int | None, str]:
        """Run Python in the tree, in a process group of its own, and kill all its processes afterwards. Return the exit
        code, or None after a timeout, and the output."""
        if self._stopped.is_set():
            raise KeyboardInterrupt
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src"), "MUTANTS_RUN": self._run_id, **variables}
        environment["COVERAGE_CORE"] = "ctrace"  # the core that supports contexts
        output_file = self._notes / "output"
        with output_file.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            code: int | None
            try:
                code = self._process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                self._kill()
        if self._stopped.is_set():
            raise KeyboardInterrupt
        return code, output_file.read_text(errors="replace")

    def _kill(self) -> None:
        """Kill all processes that were started, including brokers that tests have started in sessions of their own."""
        mark = f"MUTANTS_RUN={self._run_id}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue  # a process of another user, or one that has ended
        if self._process is not None:
            self._process.wait()


def _is_under(test: str, folders: tuple[str, ...]) -> bool:
    file = test.partition("::")[0]
    return any(file == folder or file.startswith(f"{folder}/") for folder in folders)
