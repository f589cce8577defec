"""Draw the app and write the README's example from a finished campaign: `scripts/pictures.py HOME [CAMPAIGN]`.

HOME is the folder of a home that a real campaign ran in (read only). Writes docs/img/app.svg and what
stands between the `example` marks of README.md. Paths of this machine are replaced by those that
everybody has, and the picture loads no fonts.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rsi_tui.app.main import RsiApp
from rsi_tui.app.plain import final_summary
from rsi_tui.config import AppSettings
from rsi_tui.journal.view import CampaignView, list_campaigns, load_campaign
from rsi_tui.locations import Home

ROOT = Path(__file__).resolve().parents[1]
SIZE = (110, 34)
"""columns and rows"""
PICTURE = "docs/img/app.svg"
EVERYBODYS_HOME = "~/.local/share/rsi"
PATIENCE_S = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("campaign", nargs="?", help="default: the newest that is finished")
    options = parser.parse_args()
    home = Home(options.home.absolute())
    view = load_campaign(home, options.campaign) if options.campaign else newest_finished(home)
    picture = asyncio.run(draw(home, view.id))
    (ROOT / PICTURE).parent.mkdir(parents=True, exist_ok=True)
    (ROOT / PICTURE).write_text(picture, encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(with_example(readme.read_text(encoding="utf-8"), example(home, view)), encoding="utf-8")
    print(f"{PICTURE} and the example of README.md show campaign {view.id}")
    return 0


def newest_finished(home: Home) -> CampaignView:
    """The newest finished campaign of a home; ends the script when there is none."""
    found = next((view for view in list_campaigns(home) if view.state == "finished"), None)
    if found is None:
        raise SystemExit(f"no campaign in {home.root} is finished; run one first.")
    return found


async def draw(home: Home, campaign: str) -> str:
    """The app's first screen on a campaign as SVG."""
    app = RsiApp(home, campaign, AppSettings())
    async with app.run_test(size=SIZE) as pilot:
        give_up = time.monotonic() + PATIENCE_S
        while not app.showing and time.monotonic() < give_up:
            await pilot.pause(0.1)
        await pilot.press("g", "j", "j")
        await pilot.pause(0.5)
        picture = app.export_screenshot(title=f"rsi attach {campaign}")
    picture = re.sub(r"@font-face\s*\{.*?\}", "", picture, flags=re.DOTALL)
    return re.sub(r"font-family: (?:Fira Code|arial)[^;]*;", "font-family: monospace;", picture)


def example(home: Home, view: CampaignView) -> str:
    """What the campaign printed at its end, and the picture."""
    report = Path(EVERYBODYS_HOME) / home.campaign(view.id).reports.relative_to(home.root) / "report.md"
    text = without_paths(final_summary(view, report, f"rsi attach {view.id}"), home, view).strip("\n")
    host = view.created.host if view.created else {}
    where = "; ".join(host[key] for key in ("hardware", "software") if key in host)
    return "\n".join([
        f"The end of a run ({where}), and the app on the same campaign:",
        "", "```", text, "```", "", f"![The app: directions and rounds, what was adopted, what failed]({PICTURE})",
    ])  # fmt: skip


def without_paths(text: str, home: Home, view: CampaignView) -> str:
    """The text without the paths of this machine."""
    folder = view.created.folder if view.created else ""
    places = {str(home.root): EVERYBODYS_HOME, folder: Path(folder).name, str(ROOT): ".", str(Path.home()): "~"}
    for place in sorted((p for p in places if len(p) > 1), key=len, reverse=True):
        text = text.replace(place, places[place])
    return text


def with_example(readme: str, text: str) -> str:
    """The README with the text between its marks; ends the script when they are not there."""
    pattern = re.compile(r"<!-- example -->.*?<!-- /example -->", re.DOTALL)
    if not pattern.search(readme):
        raise SystemExit("README.md has no <!-- example --> marks.")
    return pattern.sub(lambda _: f"<!-- example -->\n{text}\n<!-- /example -->", readme)


if __name__ == "__main__":
    raise SystemExit(main())
