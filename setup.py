"""The Cython extensions; everything else about the package is in pyproject.toml."""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNELS = (
    "stratalog.records._crc32c",
    "stratalog.records._framing",
    "stratalog.records.validation",
    "stratalog.records._records",
    "stratalog.records._record_stream",
    "stratalog.records._key_map",
    "stratalog.records._compaction",
    "stratalog.records._column_decoder",
    "stratalog.records._column_encoder",
    "stratalog.records._scan_decoder",
    "stratalog.storage._mapping",
    "stratalog.storage._page_cache",
    "stratalog.protocol._wire_fields",
    "stratalog.protocol._shape",
    "stratalog.protocol._hot_responses",
    "stratalog.protocol._wire",
    "stratalog.protocol._produce_client",
    "stratalog.net._receive",
    "stratalog.net._pipeline",
    "stratalog.protocol._fetch_response",
    "stratalog.client._consumer_records",
    "stratalog.client._fetched_batches",
    "stratalog.client._partitioner",
    "stratalog.client._record_arguments",
    "stratalog.client._batch",
    "stratalog.client._queues",
    "stratalog.client._direct",
    "stratalog.client._accumulator",
    "stratalog.client._arrow_partitions",
)

AT_ONCE = os.cpu_count() or 1

setup(
    options={"build_ext": {"parallel": AT_ONCE}},
    ext_modules=cythonize(
        [Extension(name, [f"src/{name.replace('.', '/')}.pyx"], extra_compile_args=["-O3"]) for name in KERNELS],
        nthreads=AT_ONCE,
        compiler_directives={
            "language_level": "3",
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
        },
    ),
)
