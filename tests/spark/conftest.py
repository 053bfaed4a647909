"""The session is the fixture `spark` of tests/conftest.py; brokers come from the pytest plugin (stratalog.testing)."""
