"""Compaction: keeps only the last record of each key. `plan` decides which logs are due, `survivors` and `transactions`
which records stay. `cleaned_segment` and `swap` replace the files. `compactor` compacts one log, `cleaner` all logs."""
