"""Edits of a program's text by position: everything that is not edited keeps every byte.

Edits are collected first and made at once, so that positions stay those of the tree. A draft that no longer parses
is no plant: `texts` raises Missing, since the program is written in a way that the attack did not foresee.
"""

from __future__ import annotations

import ast
import textwrap

from rsi_tui.evaluator.redteam.anatomy import Anatomy, File, Missing


class Draft:
    """A change in the making. All code that is given is dedented and put at the indentation of its place."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.program = anatomy
        self.modes: dict[str, str] = {}
        self._edits: dict[str, list[tuple[int, int, str]]] = {}
        self._added: dict[str, str] = {}

    def replace(self, file: File, node: ast.AST, text: str) -> None:
        """Put other text in place of an expression or a statement."""
        start, end = file.span(node)
        self._put(file, start, end, text)

    def before(self, file: File, statement: ast.stmt, code: str) -> None:
        """Statements in front of one."""
        start = file.line_start(statement)
        self._put(file, start, start, _indented(code, statement.col_offset))

    def after(self, file: File, statement: ast.stmt, code: str) -> None:
        """Statements behind one, on its level."""
        file.line_start(statement)
        end = file.line_end(statement)
        self._put(file, end, end, _indented(code, statement.col_offset, fresh=not file.ends_line(end)))

    def under(self, file: File, statement: ast.stmt, header: str) -> None:
        """The statement as the body of `header`, which ends with a colon."""
        start, end = file.line_start(statement), file.line_end(statement)
        body = textwrap.indent(file.data[start:end].decode(), "    ")
        self._put(file, start, end, _indented(header, statement.col_offset) + body)

    def top(self, file: File, code: str) -> None:
        """Code below the file's first imports."""
        at = file.below_imports()
        self._put(file, at, at, _indented(code, 0, fresh=not file.ends_line(at)))

    def needs(self, file: File, name: str, line: str = "") -> None:
        """Make sure that an imported name is bound in the file."""
        if not file.binds(name):
            self.top(file, line or f"import {name}")

    def end(self, file: File, code: str) -> None:
        """Code at the end of the file."""
        at = len(file.data)
        self._put(file, at, at, "\n\n" + textwrap.dedent(code))

    def add(self, path: str, text: str, mode: str = "") -> None:
        """A file of its own."""
        self._added[path] = text
        if mode:
            self.modes[path] = mode

    def texts(self) -> dict[str, str]:
        """path -> text of every file that changed or came. Raises Missing where Python no longer parses."""
        out = {path: self._edited(path) for path in self._edits} | self._added
        for path, text in out.items():
            if path.endswith(".py") and path not in self.modes:
                try:
                    ast.parse(text)
                except (SyntaxError, ValueError):
                    raise Missing("text that can be edited") from None
        if not out:
            raise Missing("anything to edit")
        return out

    def _put(self, file: File, start: int, end: int, text: str) -> None:
        self._edits.setdefault(file.path, []).append((start, end, text))

    def _edited(self, path: str) -> str:
        data = self.program.file(path).data
        # of two edits at one place the first given comes first in the text
        for _, (start, end, text) in sorted(enumerate(self._edits[path]), key=lambda e: (e[1][0], e[0]), reverse=True):
            data = data[:start] + text.encode() + data[end:]
        return data.decode()


def _indented(code: str, column: int, *, fresh: bool = False) -> str:
    text = textwrap.indent(textwrap.dedent(code).strip("\n") + "\n", " " * column)
    return "\n" + text if fresh else text
