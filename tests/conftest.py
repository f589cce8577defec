"""What holds for every test."""

from __future__ import annotations

import os

os.environ.setdefault("RSI_LIBRARY", "direct")
"""no test leaves a server behind, or waits for an encoder that it does not need; those of the server say otherwise"""
