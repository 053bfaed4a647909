"""How every command ends: exit codes, one line for an expected error, silence when the reader of a pipe went away.

0: fine. 1: looked, and found problems. 2: could not look: bad usage, bad input. 130: interrupted. 141: broken pipe.
An expected error is one line on stderr that says what to do next; only a fault in Stratalog shows a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from stratalog.cli.help_words import say_it_in_words
from stratalog.cli.kafka_words import instead_of
from stratalog.errors import CorruptBatchError, StratalogError, UnknownTopicError

FOUND_PROBLEMS = 1
BAD_INPUT = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
STDOUT = "stdout"
SERVER = "stratalog.bootstrap_server"  # in a context's meta: whom the command asks


class CommandError(Exception):
    """An expected error of the command line itself. The message says what to do next."""


class BulkError(Exception):
    """Of things that a command was to do one after the other; each error gets its line."""

    def __init__(self, errors: Sequence[Exception], can_make: bool) -> None:
        super().__init__(f"{len(errors)} errors")
        self.errors = errors
        self.can_make = can_make


class Program(TyperGroup):
    """The group of all commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        say_it_in_words(self)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.TyperException as error:  # usage: an unknown option, a missing argument
            code = complain(_usage_message(error), f"see {_command(error)} --help")
        except typer.Abort:  # an interrupt before the command began, or at a question
            complain("interrupted")
            code = INTERRUPTED
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code

    def invoke(self, ctx: Any) -> Any:
        from stratalog.cli import news

        try:
            with news.shown():
                result = super().invoke(ctx)
            with writing():
                sys.stdout.flush()
        except BrokenPipeError:
            _let_go_of_stdout()
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt as error:
            complain("interrupted", str(error))
            raise typer.Exit(INTERRUPTED) from None
        except CommandError as error:
            raise typer.Exit(complain(str(error), notes=notes_of(error))) from None
        except CorruptBatchError as error:
            complain(str(error), "stratalog verify DIR shows all that is wrong")
            raise typer.Exit(FOUND_PROBLEMS) from None
        except BulkError as failed:
            for each in failed.errors:
                complain(spoken(each, can_make=failed.can_make, server=ctx.meta.get(SERVER)))
            raise typer.Exit(BAD_INPUT) from None
        except StratalogError as error:
            raise typer.Exit(complain(spoken(error, server=ctx.meta.get(SERVER)), notes=notes_of(error))) from None
        except OSError as error:
            if error.filename == STDOUT:
                _let_go_of_stdout()
            raise typer.Exit(complain(describe(error), notes=notes_of(error))) from None
        return result


def complain(message: str, advice: str = "", *, notes: Sequence[str] = ()) -> int:
    """One line on stderr, and one for each note; the exit code that goes with it."""
    if advice:
        message += f" {advice[0].upper()}{advice[1:]}" if message.endswith("?") else f"; {advice}"
    for line in (message, *notes):
        print(printable(f"stratalog: {line}"), file=sys.stderr)  # noqa: T201 - the place where errors are shown
    return BAD_INPUT


def notes_of(error: BaseException) -> Sequence[str]:
    """What a command added to an error: how far it came, and how to go on."""
    return getattr(error, "__notes__", ())


def spoken(error: BaseException, *, can_make: bool = True, server: str | None = None) -> str:
    """An error of the library's, with advice for who types commands and not for who writes programs. `server` is asked
    what a name that it does not know could mean."""
    about, text = getattr(error, "about", ""), str(error)
    if isinstance(error, UnknownTopicError) and about.startswith("topic "):
        return _no_such_topic(about.removeprefix("topic ").strip("'"), can_make, server)
    if getattr(error, "name", "") == "GROUP_ID_NOT_FOUND" and about.startswith("group ") and server is not None:
        from stratalog.cli.broker_names import similar_group

        similar = similar_group(about.removeprefix("group ").strip("'"), server)
        text += f"; did you mean {similar!r}?" if similar else ""
    if getattr(error, "name", "") == "TOPIC_ALREADY_EXISTS" and about:
        return f"{about} exists already; choose another name, or use the topic that exists"
    if getattr(error, "name", "") == "TRANSACTIONAL_ID_NOT_FOUND":
        text += "; check the id: `stratalog transaction list` has all"
    if "can't be resolved" in text and "trying again" not in text:
        text += "; check the name, or give another --bootstrap-server"
    if getattr(error, "name", "") == "INVALID_RECORD" and "key" in text:
        text += "; the topic is compacted: give keys, with --key-separator, or as fields with --json"
    return text.replace("Admin.create_topics, ", "").replace(
        "is a broker listening there?",
        "is a broker running there? start one: stratalog serve, or give --bootstrap-server",
    )


def _no_such_topic(name: str, can_make: bool, server: str | None) -> str:
    from stratalog.cli.broker_names import similar_topic

    similar = similar_topic(name, server) if server is not None else None
    making = f", and `stratalog topic create {name}` makes it" if can_make else ""
    if similar is None:
        return f"topic {name!r} does not exist; `stratalog topic list` shows those that do{making}"
    return f"topic {name!r} does not exist; did you mean {similar!r}? `stratalog topic list` shows all topics{making}"


@contextmanager
def writing() -> Iterator[None]:
    """To stdout: an error of its names no file by itself."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        error.filename = STDOUT
        raise


def describe(error: OSError) -> str:
    """An OSError as a sentence with what to do about it."""
    where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
    advice = {
        FileNotFoundError: "; check the path",
        PermissionError: "; run as the user that owns the files",
        NotADirectoryError: "; give a partition's or a data directory",
        IsADirectoryError: "; give the files in it, like DIR/*.log",
    }.get(type(error), "")
    return f"{where}{(error.strerror or str(error)).lower()}{advice}"


def _command(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return getattr(context, "command_path", None) or "stratalog"


def _usage_message(error: typer.TyperException) -> str:
    """For who comes from Kafka's tools, with the option that is meant."""
    option = getattr(error, "option_name", None)
    instead = instead_of(_command(error), option) if isinstance(option, str) else None
    return _first_line(error.format_message()) if instead is None else f"no such option: {option}; {instead}"


def _first_line(message: str) -> str:
    return " ".join(message.split()).rstrip(".").replace("Value error, ", "")


def printable(text: str) -> str:
    """Names of files may hold anything, also what would move a terminal's cursor."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def _let_go_of_stdout() -> None:
    # Python flushes stdout once more when it ends, which would complain about the pipe.
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # a stdout without a file behind it needs no saving
