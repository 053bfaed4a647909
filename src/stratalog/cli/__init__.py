"""The `stratalog` command: what inspect and storage have to say, on a terminal or for a program. One module a command.

Nothing heavy is imported before a command needs it: `stratalog --help` answers in a tenth of a second.
"""
