"""What every test run needs before the first module of ours is imported."""

import hypothesis  # before kio, which registers its types with it if it is there
import pytest

hypothesis.settings.register_profile("stratalog", deadline=None)  # no test asserts a time
hypothesis.settings.load_profile("stratalog")


def pytest_addoption(parser: pytest.Parser) -> None:
    # Here and not in tests/client, whose conftest is not read before the command line unless it is named there.
    parser.addoption("--kafka", action="store_true", help="run tests/client against Apache Kafka (see make compat)")
