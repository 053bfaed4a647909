"""Stratalog: a Kafka-compatible commit log for Python people. Import what you need from its packages."""

__version__: str


def __getattr__(name: str) -> str:
    # The version is the installed package's; asking for it costs 20 ms, which an import should not.
    if name == "__version__":
        from importlib.metadata import version

        return version("stratalog")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
