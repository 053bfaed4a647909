"""Brokers as processes of this machine, for the demo and the tests."""
