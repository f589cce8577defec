"""What a child process gets of our environment: all of it but the keys of a model's API.

Every program that the product starts, other than its own engine, gets `for_child()` or an environment made from
nothing: hooks, git, the library's server, and the small questions to interpreters and drivers. Trials and commands of an
agent get an allow-list instead (`launch`).
"""

from __future__ import annotations

import os

_KEYS = {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "AWS_BEARER_TOKEN_BEDROCK"}
"""variables that the `anthropic` package reads by itself"""


def withhold(name: str) -> None:
    """From now on no child of this process gets that variable: one that settings name for the key."""
    _KEYS.add(name)


def for_child(*names: str) -> dict[str, str]:
    """This process's environment without the API's keys and without these variables.

    A variable of another name with the same value as a key is left out too.
    """
    without = _KEYS.union(names)
    values = {os.environ[name] for name in without if os.environ.get(name)}
    return {name: value for name, value in os.environ.items() if name not in without and value not in values}
