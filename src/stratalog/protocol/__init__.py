"""Kafka's wire protocol, sans-IO: bytes in, messages out, and back. No sockets, no threads, no clock.

kio, which knows the messages, imports hypothesis where that is installed: a third of a second for the sake of its own
tests, which a broker that starts has no use for. So it is imported here first, with hypothesis out of sight.
"""

import sys

if "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.schema.errors  # noqa: F401 - for what it does to sys.modules
    finally:
        del sys.modules["hypothesis"]
