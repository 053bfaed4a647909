"""Topics with their ids and settings, and the cluster id, in files of the data directory."""
