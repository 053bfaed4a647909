"""A port that stays reserved while its broker is down. It is bound, so the system gives it to no other process, but
does not listen, so the connections of clients are refused.

Without it, the system could give the port to a connecting client as its own end, and the client would talk to itself.
"""

from __future__ import annotations

import socket


class HeldPort:
    """A free port of a host, reserved until close()."""

    def __init__(self, host: str) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the broker binds it too
        self._socket.bind((host, 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()
