"""Draw app and report and write the README's example from a finished campaign: `scripts/pictures.py HOME [CAMPAIGN] [--only PART]`.

HOME is the folder of a home that a real campaign ran in (read only). Part `app` is docs/img/app.svg and what stands between
the `example` marks of README.md; part `report` is docs/img/report.png, the first screen of the report's page in a headless
Chromium, and what stands between the `report` marks. Paths of this machine are replaced by those that everybody has, and the
pictures load no fonts.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rsi_tui.app.main import RsiApp
from rsi_tui.app.plain import final_summary
from rsi_tui.audit.html import render_html
from rsi_tui.audit.report import report_data
from rsi_tui.config import AppSettings
from rsi_tui.journal.chain import read_events
from rsi_tui.journal.view import CampaignView, list_campaigns, load_campaign
from rsi_tui.locations import Home

ROOT = Path(__file__).resolve().parents[1]
SIZE = (110, 34)
"""columns and rows"""
PICTURE = "docs/img/app.svg"
REPORT_PICTURE = "docs/img/report.png"
REPORT_SIZE = (1000, 780)
"""pixels of a page that is read on a laptop"""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
EVERYBODYS_HOME = "~/.local/share/rsi"
PATIENCE_S = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("campaign", nargs="?", help="default: the newest that is finished")
    parser.add_argument("--only", choices=("app", "report"), help="default: both")
    options = parser.parse_args()
    home = Home(options.home.absolute())
    view = load_campaign(home, options.campaign) if options.campaign else newest_finished(home)
    (ROOT / PICTURE).parent.mkdir(parents=True, exist_ok=True)
    if options.only != "report":
        (ROOT / PICTURE).write_text(asyncio.run(draw(home, view.id)), encoding="utf-8")
        _write("example", example(home, view))
        print(f"{PICTURE} and the example of README.md show campaign {view.id}")
    if options.only != "app":
        page = render_html(report_data(view, read_events(home.campaign(view.id).journal)))
        photograph(page, ROOT / REPORT_PICTURE)
        _write("report", report_example(view))
        print(f"{REPORT_PICTURE} shows campaign {view.id}")
    return 0


def _write(mark: str, text: str) -> None:
    readme = ROOT / "README.md"
    readme.write_text(with_example(readme.read_text(encoding="utf-8"), text, mark), encoding="utf-8")


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


def photograph(page: str, picture: Path) -> None:
    """The first screen of a page, in light, as PNG; ends the script where there is no Chromium."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise SystemExit(f"the report is photographed with Chromium; install it, or leave this part out with --only app (looked for {', '.join(BROWSERS)}).")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "report.html").write_text(page, encoding="utf-8")
        subprocess.run(
            [
                browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile",
                "--window-size={},{}".format(*REPORT_SIZE), f"--screenshot={picture}", f"file://{folder}/report.html",
            ],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip


def report_example(view: CampaignView) -> str:
    """The sentence and the picture of a campaign's report."""
    speedup = view.proven_speedup()
    found = f"{speedup.estimate:.2f}x faster, proven" if speedup is not None else "nothing was proven"
    return "\n".join([
        "The first screen of a campaign's audit report (`rsi report --format html -o report.html`). It says first what was proven,",
        "or why nothing was:", "", f"![The audit report of campaign {view.id}: {found}]({REPORT_PICTURE})",
    ])  # fmt: skip


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


def with_example(readme: str, text: str, mark: str = "example") -> str:
    """The README with the text between its marks; ends the script when they are not there."""
    pattern = re.compile(rf"<!-- {mark} -->.*?<!-- /{mark} -->", re.DOTALL)
    if not pattern.search(readme):
        raise SystemExit(f"README.md has no <!-- {mark} --> marks.")
    return pattern.sub(lambda _: f"<!-- {mark} -->\n{text}\n<!-- /{mark} -->", readme)


if __name__ == "__main__":
    raise SystemExit(main())
