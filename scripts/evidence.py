"""Write docs/evidence.md from the JSON that the benches print: `scripts/evidence.py RESULT.json...`.

Each bench has one section, marked by a comment that names it; a new result replaces the section, the
others stay as they are. Nothing in that page is written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "evidence.md"
HEAD = """# Evidence

Figures that benches in `scripts/bench/` measured, with date and machine. Written by
`scripts/evidence.py` from their JSON; run a bench again to check one.
"""


def section(result: dict[str, Any]) -> str:
    """One bench as Markdown, between its markers."""
    name = result["bench"]
    command = result.get("command", f"scripts/bench/{name}.py")
    lines = [
        f"<!-- {name} -->",
        f"## {name}",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {result['machine']}. `{command}`",
        "",
        "| figure | value | unit | target | met |",
        "|---|---|---|---|---|",
    ]
    for figure in result["figures"]:
        met = {True: "yes", False: "**no**", None: ""}[figure.get("ok")]
        lines.append(f"| {figure['name']} | {show(figure['value'])} | {figure['unit']} | {figure['target']} | {met} |")
    lines += ["", *result.get("notes", []), f"<!-- /{name} -->", ""]
    return "\n".join(lines)


def show(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def replace(page: str, result: dict[str, Any]) -> str:
    """The page with a bench's section replaced, or added at its end."""
    name = re.escape(result["bench"])
    pattern = re.compile(rf"<!-- {name} -->.*?<!-- /{name} -->\n", re.DOTALL)
    text = section(result)
    return pattern.sub(lambda _: text, page) if pattern.search(page) else page.rstrip() + "\n\n" + text


def main() -> None:
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else HEAD
    for name in sys.argv[1:]:
        page = replace(page, json.loads(Path(name).read_text(encoding="utf-8")))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
