"""Replication of partitions: which records are committed, what followers copy, and where their logs diverge."""
