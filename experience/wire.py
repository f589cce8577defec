"""Calls of the library's interface as JSON: what client and server agree on.

    POST /METHOD   {"argument": value, ...}   ->   200 {"result": value}
                                                   409 {"error": kind, "message": sentence}

Methods, arguments and results are those of `interface.ExperienceLibrary`; rows are objects of their fields. Every method
may be called again with the same arguments: what writes replaces, so that a client that lost its answer asks once more.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from experience import errors, interface
from experience.errors import ExperienceError
from experience.interface import ExperienceLibrary
from experience.records import CampaignRow, CandidateRow, DirectionRow, Entry, TrialRow

METHODS = tuple(name for name in vars(ExperienceLibrary) if not name.startswith("_") and name != "close")
ROWS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (Entry, CandidateRow, TrialRow, DirectionRow, CampaignRow)}
ERRORS: Mapping[str, Callable[[str], ExperienceError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, ExperienceError) and kind is not errors.LockedError
}
PATIENT = "x-rsi-patient"
"""header of a client that waits for the encoder rather than be answered by words alone"""
CODE = "x-rsi-code"
"""header of an answer: hash of the code that serves, and its process"""


@dataclass(frozen=True)
class _Signature:
    arguments: Mapping[str, TypeAdapter[Any]]
    result: TypeAdapter[Any]
    tagged: bool
    """the result is one row of any kind, or nothing"""


class BadCallError(ExperienceError):
    """A call that names no method, or whose arguments are not those of its method."""


@cache
def _signature(method: str) -> _Signature:
    if method not in METHODS:
        raise BadCallError(f"the library has no method {method!r}")
    names = {**vars(interface), "Record": Any}
    hints = get_type_hints(getattr(ExperienceLibrary, method), names, include_extras=True)
    result = hints.pop("return")
    tagged = method == "record_of"
    return _Signature({name: TypeAdapter(_listed(kind)) for name, kind in hints.items()}, TypeAdapter(Any if tagged else result), tagged)


def _listed(kind: Any) -> Any:
    """An iterable of rows is a list on the wire."""
    if get_origin(kind) in (Union, UnionType):
        return kind
    if str(kind).startswith("collections.abc.Iterable"):
        return list[get_args(kind)[0]]  # type: ignore[misc]
    return kind


def pack_call(method: str, arguments: Mapping[str, Any]) -> bytes:
    """A call's body."""
    wanted = _signature(method).arguments
    plain = {name: wanted[name].dump_python(list(value) if name in ("entries", "batches") else value, mode="json") for name, value in arguments.items()}
    return json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace")


def unpack_call(method: str, body: bytes) -> dict[str, Any]:
    """The arguments of a call; BadCallError when they are none of that method."""
    wanted = _signature(method).arguments
    try:
        plain = json.loads(body or b"{}")
        if not isinstance(plain, dict) or not plain.keys() <= wanted.keys():
            raise BadCallError(f"{method} takes {', '.join(wanted) or 'no arguments'}")
        return {name: wanted[name].validate_python(value) for name, value in plain.items()}
    except (ValueError, ValidationError) as error:
        raise BadCallError(f"the arguments of {method} can't be read: {str(error).splitlines()[0]}") from error


def pack_result(method: str, result: Any) -> bytes:
    """An answer's body."""
    signature = _signature(method)
    if signature.tagged:
        plain = None if result is None else {"kind": type(result).__name__, "row": TypeAdapter(type(result)).dump_python(result, mode="json")}
    else:
        plain = signature.result.dump_python(result, mode="json")
    return json.dumps({"result": plain}, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def unpack_result(method: str, body: bytes) -> Any:
    """What a call returned."""
    signature, plain = _signature(method), json.loads(body)["result"]
    if signature.tagged:
        return None if plain is None else TypeAdapter(ROWS[plain["kind"]]).validate_python(plain["row"])
    return signature.result.validate_python(plain)


def pack_error(error: ExperienceError) -> bytes:
    return json.dumps({"error": type(error).__name__, "message": str(error)}).encode("utf-8", "replace")


def unpack_error(body: bytes) -> ExperienceError:
    """The error that the server's library raised."""
    try:
        told = json.loads(body)
        return ERRORS.get(told["error"], ExperienceError)(told["message"])
    except (ValueError, KeyError, TypeError):
        return ExperienceError(f"the library's server answered {body[:200]!r}.")


@lru_cache(maxsize=1)
def code() -> str:
    """Hash of this package's code: a server of other code is asked to end."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
