"""Writes docs/report.schema.json: the shape of `rsi report --format json`, from its model.

    scripts/report_schema.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rsi_tui.audit.report_schema import json_schema

PAGE = Path(__file__).parents[1] / "docs" / "report.schema.json"


def main() -> int:
    PAGE.write_text(json.dumps(json_schema(), indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
