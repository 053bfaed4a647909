"""The demo: a year of flights through a broker, a Spark stream and SQL, checked against pandas, and drawn.

Only the `stratalog demo` command is above this package. A user's program can do the same with the same calls.
"""
