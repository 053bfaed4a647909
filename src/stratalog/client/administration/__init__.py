"""The requests behind Admin, one module per family: coroutines over a Cluster that run on the event loop's thread."""
