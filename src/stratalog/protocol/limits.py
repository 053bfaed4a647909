"""What one request may ask for, and what one response may tell."""

MOST_ELEMENTS = 100_000
"""In the arrays of a request, in all: topics and partitions, mostly. An element of a few bytes becomes an object of
hundreds, and may be answered with thousands."""

MOST_ANSWERED_ELEMENTS = 1_000_000
"""In the arrays of a response, in all. The metadata of 100,000 partitions with three replicas has 700,000."""
