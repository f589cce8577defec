"""Secrets are left out of what goes to a model and of what is kept of its answers.

Known values (of environment variables whose names say that they are secret) are found wherever they stand; besides,
whatever looks like a key of a common kind. What is left out is marked, so that nobody takes the mark for the text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

MARK = "[secret left out]"
SECRET_NAMES = re.compile(r"(?i)(key|token|secret|passw|credential|auth)")
SHORTEST = 12
"""values of fewer characters are not looked for: they would be found in innocent text"""
_PATTERNS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"sk-ant-[A-Za-z0-9_-]{8,}",
        r"\bsk-[A-Za-z0-9_-]{20,}",
        r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
        r"\bgh[pousr]_[A-Za-z0-9]{30,}\b",
        r"\bgithub_pat_[A-Za-z0-9_]{30,}\b",
        r"\bhf_[A-Za-z0-9]{30,}\b",
        r"\bglpat-[A-Za-z0-9_-]{20,}",
        r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
        r"\bAIza[A-Za-z0-9_-]{35}",
        r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        r"(?i)(?<=://)[^/\s:@]+:[^/\s:@]+(?=@)",
    )
)
_ASSIGNED = re.compile(
    r"(?i)((?:api|secret|access|auth|private)[_-]?(?:key|token|secret)|password|passwd)(\s*[:=]\s*)([\"'])[^\"'\n]{8,}\3"
)


class Redactor:
    """Leaves out secrets, those of this process's environment included."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        known = os.environ if environment is None else environment
        values = {value for name, value in known.items() if SECRET_NAMES.search(name) and len(value) >= SHORTEST}
        self._values = sorted((v for v in values if "/" not in v[:1]), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        for value in self._values:
            text = text.replace(value, MARK)
        for pattern in _PATTERNS:
            text = pattern.sub(MARK, text)
        return _ASSIGNED.sub(rf"\1\2\3{MARK}\3", text)
