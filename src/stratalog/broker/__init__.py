"""The broker: Kafka's APIs over the storage engine. Everything here runs on one event loop."""
