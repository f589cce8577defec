"""Secrets that programs print, taken out before anything is stored: keys, tokens, passwords, private keys.

What is known by its form (a provider's prefix, a PEM block, credentials in an address) goes wherever it stands; what is
known by its name alone (`password=`, `api_key:`) goes where its value looks like one. A hash, a version or a path stays.
"""

from __future__ import annotations

import re

_MARK = "[redacted {}]"
_FORMS: tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...] = (
    ("private key", ("PRIVATE KEY",), re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)),
    ("key", ("sk-", "pk-", "rk-"), re.compile(r"\b(?:sk|pk|rk)-(?:ant-|proj-|live-|test-)?[A-Za-z0-9_-]{20,}")),
    ("token", ("gh", "glpat", "hf_", "xox", "npm_", "pypi-"), re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|hf_[A-Za-z0-9]{20,}|xox[abprs]-[\w-]{10,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,})")),
    ("key", ("AKIA", "ASIA", "AIza"), re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{35}")),
    ("token", ("eyJ",), re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}")),
)
"""what it is, what it can't be without (looked for first: most texts hold none), and its form"""
_CREDENTIALS = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^\s/@:]+:[^\s/@]+@")
_BEARER = re.compile(r"(?i)(?P<name>\b(?:bearer|basic)\s+)(?=[\w.~+/-]*\d)[\w.~+/-]{16,}=*")
_NAMES = ("passw", "passphrase", "secret", "apikey", "api_key", "api-key", "access_key", "access-key", "accesskey", "token=", "token:", "token ", "token'", 'token"')
_NAMED = re.compile(
    r"""(?ix)
    (?P<name>(?:[\w-]*(?:passw(?:or)?d|passphrase|secret|api[_-]?key|access[_-]?key|(?:auth|access|api|refresh|hf|hub|github|gitlab|slack|bot)[_-]?token))
        ["']?\s*[=:]\s*)
    (?P<value>"[^"\s]{6,}"|'[^'\s]{6,}'|[^\s"',;(){}\[\]]{8,})"""
)


def redacted(text: str) -> str:
    """The text without secrets; the same text when it holds none."""
    if len(text) < 8:
        return text
    for what, marks, form in _FORMS:
        if any(mark in text for mark in marks):
            text = form.sub(_MARK.format(what), text)
    if "://" in text:
        text = _CREDENTIALS.sub(lambda found: f"{found['scheme']}{_MARK.format('credentials')}@", text)
    small = text.lower()
    if "bearer" in small or "basic" in small:
        text = _BEARER.sub(lambda found: f"{found['name']}{_MARK.format('token')}", text)
    if not any(name in small for name in _NAMES):
        return text
    return _NAMED.sub(lambda found: f"{found['name']}{_MARK.format('value')}" if _looks_secret(found["value"]) else found[0], text)


def _looks_secret(value: str) -> bool:
    """Code reads a value from somewhere, or tells its type; a secret is letters and digits, or quoted."""
    bare = value.strip("\"'")
    if bare.startswith("[redacted") or re.search(r"environ|getenv|\(|\$\{?\w|^None$|^<", bare):
        return False
    return value[0] in "\"'" or any(c.isdigit() for c in bare)
