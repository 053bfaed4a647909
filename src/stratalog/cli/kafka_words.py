"""Options of Kafka's tools and of kcat that have other names here: what to give instead, by command. Pure."""

from __future__ import annotations

_SERVER = "the option is --bootstrap-server (-b)"
_EVERYWHERE = {"--broker-list": _SERVER, "--bootstrap-servers": _SERVER, "--zookeeper": _SERVER}


def _subcommands(group: str, *words: str) -> dict[str, str]:
    """Kafka's tools have as options what are commands here."""
    return {f"--{word}": f"it is a command: stratalog {group} {word}" for word in words}


_INSTEAD = {
    "consume": {
        "--from-beginning": "reading from the beginning is the default",
        "-o": "the options are --from-offset (beginning, end, 42 or -10) and --from-time",
        "--offset": "the option is --from-offset (beginning, end, 42 or -10)",
        "-c": "the option is --count (-n)",
        "--max-messages": "the option is --count (-n)",
        "-e": "ending with the last record is the default; --follow (-f) goes on",
        "--timeout-ms": "ending with the last record is the default; --follow (-f) goes on",
        "-t": "topics are named without an option: stratalog consume orders",
        "--topic": "topics are named without an option: stratalog consume orders",
        "--include": "the option is --pattern",
        "--whitelist": "the option is --pattern",
        "--property": "the options are --key-separator, --json and --format",
    },
    "produce": {
        "-t": "the topic is named without an option: stratalog produce orders",
        "--topic": "the topic is named without an option: stratalog produce orders",
        "--property": "the options are --key-separator, --json and --header",
        "--producer-property": "the option is --set",
        "--compression-codec": "the option is --compression (-z)",
    },
    "serve": {
        "--port": "the option is --listen, with the host: --listen 127.0.0.1:9092",
        "-p": "the option is --listen, with the host: --listen 127.0.0.1:9092",
        "--host": "the option is --listen, with the port: --listen 127.0.0.1:9092",
        "--override": "the option is --set",
    },
    "topic": {
        **_subcommands("topic", "list", "describe", "create", "delete", "alter"),
        "--topic": "topics are named behind the command, without an option: stratalog topic describe orders",
    },
    "group": {
        **_subcommands("group", "list", "describe", "delete"),
        "--reset-offsets": "it is a command: stratalog group reset",
        "--group": "groups are named behind the command, without an option: stratalog group describe billing",
    },
    "config": {
        "--describe": "it is a command: stratalog config get",
        "--alter": "they are commands: stratalog config set, and stratalog config delete",
    },
    "transaction": _subcommands("transaction", "list", "describe", "abort"),
}
_BELOW = {
    ("topic", "--topic"): "topics are named without an option",
    ("group", "--group"): "groups are named without an option",
    ("group reset", "--to-earliest"): "the option is --to-beginning",
    ("group reset", "--to-latest"): "the option is --to-end",
    ("group reset", "--to-datetime"): "the option is --to-time",
    ("group reset", "--execute"): "it is done at once; --dry-run only says what would be done",
}


def instead_of(command_path: str, option: str) -> str | None:
    """Of an option that a command does not have: what it has for it; None where that is not known."""
    names = command_path.split()[1:]
    command, whole = " ".join(names[:1]), " ".join(names)
    if len(names) > 1:
        return _BELOW.get((whole, option)) or _BELOW.get((command, option)) or _EVERYWHERE.get(option)
    return _INSTEAD.get(command, {}).get(option) or _EVERYWHERE.get(option)
