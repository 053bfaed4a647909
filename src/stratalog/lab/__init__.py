"""Brokers as processes of this machine: one for a demo or a test, several for a cluster to try out."""
