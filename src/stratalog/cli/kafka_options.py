"""Options of Kafka's tools and of kcat that have other names here, with the replacement for each command. Pure."""

from __future__ import annotations

_SERVER = "the option is --bootstrap-server (-b)"
_ALL_COMMANDS = {"--broker-list": _SERVER, "--bootstrap-servers": _SERVER, "--zookeeper": _SERVER}
_OFFSET = "the option is --from-offset (beginning, end, 42 or -10)"
_NO_FOLLOW = "consume ends after the last record; --follow (-f) continues"
_TOPICS = "name the topics without an option: stratalog consume orders"
_TOPIC = "name the topic without an option: stratalog produce orders"
_LISTEN = "the option is --listen, with host and port: --listen 127.0.0.1:9092"


def _subcommands(group: str, *words: str) -> dict[str, str]:
    """Kafka's tools have options where Stratalog has commands."""
    return {f"--{word}": f"it is a command: stratalog {group} {word}" for word in words}


_COMMANDS = {
    "consume": {
        "--from-beginning": "consume reads from the beginning by default",
        "-o": f"{_OFFSET}, or --from-time",
        "--offset": _OFFSET,
        "-c": "the option is --count (-n)",
        "--max-messages": "the option is --count (-n)",
        "-e": _NO_FOLLOW,
        "--timeout-ms": _NO_FOLLOW,
        "-t": _TOPICS,
        "--topic": _TOPICS,
        "--include": "the option is --pattern",
        "--whitelist": "the option is --pattern",
        "--property": "the options are --key-separator, --json and --format",
    },
    "produce": {
        "-t": _TOPIC,
        "--topic": _TOPIC,
        "--property": "the options are --key-separator, --json and --header",
        "--producer-property": "the option is --set",
        "--compression-codec": "the option is --compression (-z)",
    },
    "serve": {"--port": _LISTEN, "-p": _LISTEN, "--host": _LISTEN, "--override": "the option is --set"},
    "topic": {
        **_subcommands("topic", "list", "describe", "create", "delete", "alter"),
        "--topic": "name the topics after the command, without an option: stratalog topic describe orders",
    },
    "group": {
        **_subcommands("group", "list", "describe", "delete"),
        "--reset-offsets": "it is a command: stratalog group reset",
        "--group": "name the groups after the command, without an option: stratalog group describe billing",
    },
    "config": {
        "--describe": "it is a command: stratalog config get",
        "--alter": "the commands are stratalog config set and stratalog config delete",
    },
    "transaction": _subcommands("transaction", "list", "describe", "abort"),
}
_SUBCOMMANDS = {
    ("topic", "--topic"): "name the topics without an option",
    ("group", "--group"): "name the groups without an option",
    ("group reset", "--to-earliest"): "the option is --to-beginning",
    ("group reset", "--to-latest"): "the option is --to-end",
    ("group reset", "--to-datetime"): "the option is --to-time",
    ("group reset", "--execute"): "the reset is done at once; --dry-run only shows it",
}


def replacement_for(command_path: str, option: str) -> str | None:
    """Return what a command has instead of an option that it lacks, or None if that is not known."""
    names = command_path.split()[1:]
    command, path = " ".join(names[:1]), " ".join(names)
    if len(names) > 1:
        return _SUBCOMMANDS.get((path, option)) or _SUBCOMMANDS.get((command, option)) or _ALL_COMMANDS.get(option)
    return _COMMANDS.get(command, {}).get(option) or _ALL_COMMANDS.get(option)
