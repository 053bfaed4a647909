"""`python -m stratalog` is the `stratalog` command."""

from stratalog.cli.main import run

if __name__ == "__main__":
    run()
