"""Stratalog: a Kafka-compatible commit log for Python people. Import what you need from its packages.

The clients are here too: `from stratalog import Producer, Consumer, Admin`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratalog.client import Admin, Consumer, ConsumerRecord, Producer, RebalanceListener, TopicPartition

__all__ = [
    "Admin",
    "Consumer",
    "ConsumerRecord",
    "Producer",
    "RebalanceListener",
    "TopicPartition",
    "__version__",
]

__version__: str


if not TYPE_CHECKING:  # or type checkers would take any name for one that is here

    def __getattr__(name):
        # The version is the installed package's; asking for it costs 20 ms, which an import should not.
        if name == "__version__":
            from importlib.metadata import version

            return version("stratalog")
        # The clients need what the broker and the log don't.
        if name in __all__:
            from importlib import import_module

            return getattr(import_module("stratalog.client"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
