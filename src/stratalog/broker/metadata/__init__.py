"""What exists: topics, their ids and settings, the cluster's identity; kept in files of the data directory."""
