"""The controller: which replica leads each partition, and where replicas are."""
