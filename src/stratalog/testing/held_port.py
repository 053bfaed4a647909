"""A port that stays a broker's own while it is down: bound, so that nobody else is given it, but not listened on, so
that clients are refused, as they are by a broker that is not there.

Without it, a client that keeps trying may be given the port as its own end, and talk to itself.
"""

from __future__ import annotations

import socket


class HeldPort:
    def __init__(self, host: str) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the broker binds it too
        self._socket.bind((host, 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()
