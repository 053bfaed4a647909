"""What every test run needs before the first module of ours is imported."""

import hypothesis  # before kio, which registers its types with it if it is there

hypothesis.settings.register_profile("stratalog", deadline=None)  # no test asserts a time
hypothesis.settings.load_profile("stratalog")
