"""Compaction: of the records of a key only the last stays. What is due (plan), what stays (survivors, transactions),
how the new files take the place of the old (cleaned_segment, swap), one log (compactor), and all of them (cleaner)."""
