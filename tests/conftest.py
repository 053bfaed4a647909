"""What every test run needs before the first module of ours is imported."""

import hypothesis.strategies  # noqa: F401 - kio registers its types with it, if it is there when kio is imported
