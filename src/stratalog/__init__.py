"""Stratalog: a Kafka-compatible commit log in Python. Each package exports its public names.

The clients can also be imported from here: `from stratalog import Producer, Consumer, Admin`.
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


if not TYPE_CHECKING:  # with it, type checkers would accept any name

    def __getattr__(name):
        # Reading the installed package's version takes 20 ms, too long for each import.
        if name == "__version__":
            from importlib.metadata import version

            return version("stratalog")
        # The clients import modules that the broker and the log don't need.
        if name in __all__:
            from importlib import import_module

            return getattr(import_module("stratalog.client"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
