"""The kernels of Produce and Fetch change layouts at the versions that the rest of the protocol names."""

from __future__ import annotations

import re
from pathlib import Path

from stratalog.protocol import fetch, produce
from stratalog.protocol.api_keys import VERSIONS, ApiKey

_NUMBER = re.compile(r"^    (\w+) = (\d+)", re.MULTILINE)


def test_kernels_and_python_modules_have_the_same_versions() -> None:
    declarations = Path(produce.__file__).with_name("hot_versions.pxd").read_text()
    numbers = {name: int(value) for name, value in _NUMBER.findall(declarations)}
    assert numbers["PRODUCE_FLEXIBLE"] == produce.FIRST_FLEXIBLE == VERSIONS[ApiKey.PRODUCE].first_flexible
    assert numbers["FETCH_FLEXIBLE"] == fetch.FIRST_FLEXIBLE == VERSIONS[ApiKey.FETCH].first_flexible
    assert numbers["FETCH_BY_ID"] == fetch.FIRST_BY_ID
    assert numbers["FETCH_WITH_SESSIONS"] == fetch.FIRST_WITH_SESSIONS
