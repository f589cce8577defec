"""What holds for every test."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("RSI_LIBRARY", "direct")
"""no test leaves a server behind, or waits for an encoder that it does not need; those of the server say otherwise"""

TIMED = ("tests/minds/test_claude_proven.py",)
"""files that measure, and come last: by then the other worker has little left that could disturb them"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.nodeid.startswith(TIMED))
