"""The program around all commands: it loads a command, and ends it with an exit code and readable errors.

Exit codes: 0 success; 1 the command looked and found problems; 2 it could not run, because of wrong usage or input; 130
interrupted; 141 broken pipe. An expected error is one line on stderr that says what to do next. Only a bug in Stratalog
shows a traceback. If the reader of a pipe goes away, the command ends silently.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup

from stratalog.cli.kafka_options import replacement_for
from stratalog.cli.wording import printable
from stratalog.errors import CorruptBatchError, StratalogError

FOUND_PROBLEMS = 1
BAD_INPUT = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
STDOUT = "stdout"
SERVER = "stratalog.bootstrap_server"  # a key in a context's meta: the broker that the command talks to

_EXPECTATIONS = {  # by the beginning of pydantic's error type
    "int_": "a number",
    "float_": "a number",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
}


class CommandError(Exception):
    """An expected error of the command line itself. The message says what to do next."""


class BulkError(Exception):
    """The errors of a command that handles several things one by one. Each is reported in a line of its own.
    `can_create`: a topic that does not exist could be created instead."""

    def __init__(self, errors: Sequence[Exception], can_create: bool) -> None:
        super().__init__(f"{len(errors)} errors")
        self.errors = errors
        self.can_create = can_create


class Program(TyperGroup):
    """The group of all commands. It knows their names and imports the module of the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        simplify_help(self)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, None if name is None or placeholder is None else load_command(name), rest

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
        except typer.TyperException as error:  # an unknown option, a missing argument
            code = complain(_usage_message(error), f"see {_command_path(error)} --help")
        except typer.Abort:  # an interrupt before the command began, or at a question
            complain("interrupted")
            code = INTERRUPTED
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code

    def invoke(self, ctx: Any) -> Any:
        from stratalog.cli.client_log import show_client_log

        try:
            with show_client_log():
                result = super().invoke(ctx)
            with writing_to_stdout():
                sys.stdout.flush()
        except BrokenPipeError:
            _detach_stdout()
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt as error:
            complain("interrupted", str(error))
            raise typer.Exit(INTERRUPTED) from None
        except CommandError as error:
            raise typer.Exit(complain(str(error), notes=notes_of(error))) from None
        except CorruptBatchError as error:
            complain(str(error), "stratalog verify DIR shows everything that is damaged")
            raise typer.Exit(FOUND_PROBLEMS) from None
        except BulkError as bulk:
            from stratalog.cli.advice import explain

            for failure in bulk.errors:
                complain(explain(failure, can_create=bulk.can_create, server=ctx.meta.get(SERVER)))
            raise typer.Exit(BAD_INPUT) from None
        except StratalogError as error:
            from stratalog.cli.advice import explain

            raise typer.Exit(complain(explain(error, server=ctx.meta.get(SERVER)), notes=notes_of(error))) from None
        except OSError as error:
            if error.filename == STDOUT:
                _detach_stdout()
            raise typer.Exit(complain(describe_os_error(error), notes=notes_of(error))) from None
        return result


def load_command(name: str) -> Any:
    """Import the module of a command, and return the command for Typer to run."""
    command = typer.main.get_command(import_module(f"stratalog.cli.{name.replace('-', '_')}").app)
    simplify_help(command)
    return command


def simplify_help(command: Any) -> None:
    """Leave Python types out of the help of a command and all its subcommands. Usage lines name optional arguments in
    brackets."""
    for parameter in command.params:
        if isinstance(parameter, TyperArgument):
            parameter.display_type_rich = _no_type  # type: ignore[method-assign]
            parameter._usage_display_name = partial(_usage_name, parameter)  # type: ignore[method-assign]
    for subcommand in command.commands.values() if isinstance(command, TyperGroup) else ():
        simplify_help(subcommand)


def _no_type(*_: object, **__: object) -> str:
    return ""


def _usage_name(argument: TyperArgument) -> str:
    name = argument.display_name_raw
    return name if argument.required or name.startswith("[") else f"[{name}]"


def complain(message: str, advice: str = "", *, notes: Sequence[str] = ()) -> int:
    """Write a message and its notes to stderr, a line each, and return the exit code for bad input."""
    if advice:
        message += f" {advice[0].upper()}{advice[1:]}" if message.endswith("?") else f"; {advice}"
    for line in (message, *notes):
        print(printable(f"stratalog: {line}"), file=sys.stderr)  # noqa: T201 - errors are shown here
    return BAD_INPUT


def notes_of(error: BaseException) -> Sequence[str]:
    """Return the notes that a command added to an error: how far it got, and how to continue."""
    return getattr(error, "__notes__", ())


@contextmanager
def writing_to_stdout() -> Iterator[None]:
    """Name stdout in an OSError that is raised inside, which has no file name of its own."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        error.filename = STDOUT
        raise


def describe_os_error(error: OSError) -> str:
    """Return an OSError as a sentence with what to do next."""
    file = f"{os.fsdecode(error.filename)}: " if error.filename else ""
    advice = {
        FileNotFoundError: "; check the path",
        PermissionError: "; run as the user that owns the files",
        NotADirectoryError: "; give a partition directory or a data directory",
        IsADirectoryError: "; give the files in it, like DIR/*.log",
    }.get(type(error), "")
    return f"{file}{(error.strerror or str(error)).lower()}{advice}"


def _command_path(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return getattr(context, "command_path", None) or "stratalog"


def _usage_message(error: typer.TyperException) -> str:
    """Return the message about wrong usage. For an option of Kafka's tools it names ours."""
    if isinstance(error, typer.BadParameter) and error.param is not None:
        expected = _expectation(error.__cause__)
        if expected is not None:
            return f"{_parameter_name(error.param)} is {expected[0]!r}; it must be {expected[1]}"
    option = getattr(error, "option_name", None)
    replacement = replacement_for(_command_path(error), option) if isinstance(option, str) else None
    if replacement is not None:
        return f"no such option: {option}; {replacement}"
    return " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")


def _expectation(cause: Any) -> tuple[object, str] | None:
    """Return a refused value, and what it must be. None if pydantic, which Typer checks numbers with, refused it for
    another reason."""
    failures = cause.errors() if hasattr(cause, "errors") else []
    for failure in failures:
        for kind, expected in _EXPECTATIONS.items():
            if failure["type"].startswith(kind):
                return failure["input"], expected.format_map(failure.get("ctx", {}))
    return None


def _parameter_name(parameter: Any) -> str:
    name: str = parameter.display_name_raw if isinstance(parameter, TyperArgument) else max(parameter.opts, key=len)
    return name.strip("[]")


def _detach_stdout() -> None:
    # Python flushes stdout once more when it exits, and would report the broken pipe.
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass  # stdout has no file behind it
