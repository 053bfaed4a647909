"""Stratalog: a Kafka-compatible commit log for Python people. Import what you need from its packages.

The clients are here too: `from stratalog import Producer, Consumer, Admin`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratalog.client import Admin, Consumer, Producer

__all__ = ["Admin", "Consumer", "Producer", "__version__"]

__version__: str


def __getattr__(name: str) -> Any:
    # The version is the installed package's; asking for it costs 20 ms, which an import should not.
    if name == "__version__":
        from importlib.metadata import version

        return version("stratalog")
    # The clients need what the broker and the log don't.
    if name in ("Admin", "Consumer", "Producer"):
        from importlib import import_module

        return getattr(import_module("stratalog.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
