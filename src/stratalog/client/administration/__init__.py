"""What an Admin does, a module a family of requests: coroutines over a Cluster, in the loop's thread."""
