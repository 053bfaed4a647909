"""The documentation page of all settings, made from them: python -m stratalog.broker.settings_page."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.refused_settings import refusals
from stratalog.broker.settings import BrokerConfig
from stratalog.broker.topic_defaults import SYNONYMS, TOPIC_SETTINGS, TopicDefaults
from stratalog.broker.transactions.config import TransactionConfig
from stratalog.settings import INT_MAX, LONG_MAX, Described, as_text
from stratalog.storage.compaction.config import CleanerConfig
from stratalog.storage.config import REFUSED, DirectoryConfig, LogConfig

_INTRODUCTION = """\
# Settings

Names and meanings are Kafka's, and so are the defaults where nothing else is said. A name that does not exist, or a
value of the wrong kind, is an error that says so; a setting of Kafka's that can't count here is refused with the
reason. None is taken and then ignored.

This page is made by `python -m stratalog.broker.settings_page`; a test fails when it is out of date.
"""

_TOPIC = """\
In Python: `LogConfig(segment_bytes=...)`, or a dictionary with the dotted names; values may be text. On a broker: given
when a topic is created, and changed by AlterConfigs and IncrementalAlterConfigs. A topic that does not set one has the
broker's default, which the last column names.

A change counts at once, for every partition of the topic: the next append, roll, flush or deletion goes by it, and the
segment that is growing too. But `segment.index.bytes` counts from the next segment on, batches that are stored keep
their codec and their times, and `message.timestamp.after.max.ms` may be a little laxer after the clock was set back.
"""

_ONE_REPLICA = """\
`min.insync.replicas` and `unclean.leader.election.enable` speak of replicas, and there is one of each partition, which
is always in sync and always leads. So the first holds with 1 and makes acks=all fail with more, as in a Kafka cluster
that has lost the others. The second says what may happen when no replica in sync is left but one that lags is; there
is never one that lags, so neither value can come to count, and both are kept and shown.
"""

_BROKER = """\
Given when the broker starts: `--set name=value`. Those marked * can be changed while it runs, by AlterConfigs and
IncrementalAlterConfigs on the broker (this one, by its number, or all, without), and the change survives a restart; for
the others that is refused.
"""

_TOPIC_DEFAULTS = """\
What a topic gets that does not set it itself. They count at once for the topics that there are, too.
"""

_DIRECTORY = """\
For a broker: `--set name=value`. In Python: `LogDirectory.open(path, directory_config=DirectoryConfig(...))`.
"""

_CLEANER = """\
For a broker: `--set name=value`; those marked * can be changed while it runs. In Python: `LogDirectory.open(path,
cleaner_config=CleanerConfig(...))`.
"""

_REFUSED_TOPIC = """\
Each is taken with the value in the second column, which holds anyway, and shown by DescribeConfigs where it is Kafka's.
"""

_REFUSED_BROKER = """\
A name that ends with a dot stands for all that begin so.
"""


def settings_page() -> str:
    parts = [
        _INTRODUCTION,
        "## Of a topic\n",
        _TOPIC,
        *_table((one for one in LogConfig.described() if one.name in TOPIC_SETTINGS), broker_names=True),
        _ONE_REPLICA,
        "## Of a broker\n",
        _BROKER,
        *_table(BrokerConfig.described()),
        "### Defaults for topics\n",
        _TOPIC_DEFAULTS,
        *_table(TopicDefaults.described()),
        "### Groups and committed offsets\n",
        *_table(GroupConfig.described()),
        "### Transactions\n",
        *_table(TransactionConfig.described()),
        "## Of a data directory\n",
        _DIRECTORY,
        *_table(DirectoryConfig.described()),
        "### Its cleaner\n",
        _CLEANER,
        *_table(CleanerConfig.described()),
        "## Refused for a topic\n",
        _REFUSED_TOPIC,
        "| setting | taken with | why it can't be set |\n|---|---|---|",
        *(f"| `{name}` | {_value(one.default)} | {one.reason} |" for name, one in sorted(REFUSED.items())),
        "\n## Refused for a broker\n",
        _REFUSED_BROKER,
        "| setting | why it can't be set |\n|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in sorted(refusals())),
    ]
    return "\n".join(parts) + "\n"


def _table(settings: Iterable[Described], *, broker_names: bool = False) -> list[str]:
    last_title, last_rule = (" broker's default |", "---|") if broker_names else ("", "")
    rows = [f"| setting | default | values | what it does |{last_title}", f"|---|---|---|---|{last_rule}"]
    for one in settings:
        names = ", ".join(f"`{synonym.name}`" for synonym in SYNONYMS.get(one.name, ()))
        last = f" {names} |" if broker_names else ""
        star = " *" if one.dynamic else ""
        rows.append(f"| `{one.name}`{star} | {_value(one.default)} | {one.values.said} | {one.doc} |{last}")
    return [*rows, ""]


def _value(value: object) -> str:
    if value in (INT_MAX, LONG_MAX, str(LONG_MAX)):
        return "2^31 - 1" if value == INT_MAX else "2^63 - 1"
    return as_text(value) or ("" if value is None else '""')


if __name__ == "__main__":
    sys.stdout.write(settings_page())
