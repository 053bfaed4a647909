"""The `stratalog` command. Only commands.py and program.py are imported for every command."""
