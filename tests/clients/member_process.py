"""A member of a group in a process of its own, so that it can be killed: `python -m tests.clients.member_process`.

Arguments: the client's name, the broker's address, a ConsumerOptions as JSON. It polls without end, and writes a line
with its assignment each time that it changes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from tests.clients.everyone import make_client
from tests.clients.interface import ConsumerOptions, Place

END_SECONDS = 30


class MemberProcess:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.owned: frozenset[Place] = frozenset()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.owned = frozenset(Place(*place) for place in json.loads(line))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(END_SECONDS)
        self._reader.join(END_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def member_process(client: str, address: str, options: ConsumerOptions) -> Iterator[MemberProcess]:
    arguments = [client, address, json.dumps(asdict(options))]
    command = [sys.executable, "-W", "ignore", "-m", "tests.clients.member_process", *arguments]
    member = MemberProcess(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    try:
        yield member
    finally:
        member.kill()


def main(name: str, address: str, options: str) -> None:
    known: frozenset[Place] | None = None
    with make_client(name).consumer(address, ConsumerOptions(**json.loads(options))) as consumer:
        while True:
            consumer.poll(0.1)
            assignment = consumer.owned
            if assignment != known:
                known = assignment
                print(json.dumps(sorted(assignment)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
