"""Kafka's wire protocol, sans-IO: bytes in, messages out, and back. No sockets, no threads, no clock.

kio, which defines the messages, imports hypothesis if it is installed. Only kio's own tests need it, and the import
takes a third of a second at each start. So this module imports kio first, with hypothesis hidden.
"""

import sys

if "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.schema.errors  # noqa: F401 - for what it does to sys.modules
    finally:
        del sys.modules["hypothesis"]
