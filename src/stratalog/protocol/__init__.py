"""Kafka's wire protocol, sans-IO: bytes in, messages out, and back. No sockets, no threads, no clock."""
