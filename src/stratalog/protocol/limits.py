"""What one request may ask for."""

MOST_ELEMENTS = 100_000
"""In the arrays of a request, in all: topics and partitions, mostly. An element of a few bytes becomes an object of
hundreds, and may be answered with thousands."""
