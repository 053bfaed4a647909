"""The demo: a year of flights through a broker, a Spark stream and SQL, checked against pandas, and drawn.

Above everything but the command that starts it: what it does, a user's program can do with the same calls.
"""
