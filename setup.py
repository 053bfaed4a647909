"""The Cython extensions; everything else about the package is in pyproject.toml."""

from Cython.Build import cythonize
from setuptools import Extension, setup

EXTENSIONS = [
    Extension(
        "stratalog.records._framing", ["src/stratalog/records/_framing.pyx"], extra_compile_args=["-O3"]
    ),
    Extension(
        "stratalog.records._records", ["src/stratalog/records/_records.pyx"], extra_compile_args=["-O3"]
    ),
    Extension(
        "stratalog.records._columns", ["src/stratalog/records/_columns.pyx"], extra_compile_args=["-O3"]
    ),
    Extension(
        "stratalog.storage._mapping", ["src/stratalog/storage/_mapping.pyx"], extra_compile_args=["-O3"]
    ),
]

setup(
    ext_modules=cythonize(
        EXTENSIONS,
        compiler_directives={
            "language_level": "3",
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
        },
    )
)
