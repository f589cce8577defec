"""Where files live. The one module that knows paths; it creates nothing.

    $RSI_HOME (default $XDG_DATA_HOME/rsi)
      version                       of these files (journal.home_version)
      home.jsonl                    journal of the home: notes, knowledge, alpha ledger, retrievals
      mirrors/KEY.git               bare mirror of a training repository
      campaigns/ID/                 journal.jsonl, blobs/, logs/, commands/, engine.lock, reports/
      anchors/ID                    newest line of that journal
      evaluator/ID/                 mode 0700: vault, trees, scratch, hidden data; never in a sandbox
      library/                      experience.duckdb, vectors.lance
      imports/NAME/                 exports of other libraries, which this one reads (Parquet)
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CampaignPaths:
    """The files of one campaign, evaluator's folder included."""

    root: Path
    """campaigns/ID"""
    evaluator: Path
    """evaluator/ID, mode 0700"""

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def anchor(self) -> Path:
        """Newest line of the journal, outside the folder that holds it."""
        return self.root.parent.parent / "anchors" / self.root.name

    @property
    def blobs(self) -> Path:
        """What the journal names and its verification needs."""
        return self.root / "blobs"

    @property
    def logs(self) -> Path:
        """Output of runs that failed, which nothing needs but people."""
        return self.root / "logs"

    @property
    def commands(self) -> Path:
        return self.root / "commands"

    @property
    def lock(self) -> Path:
        return self.root / "engine.lock"

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    @property
    def worktrees(self) -> Path:
        return self.root / "worktrees"

    @property
    def live_log(self) -> Path:
        """Output of the trial that runs now, for people to watch."""
        return self.root / "live.log"

    @property
    def speaking(self) -> Path:
        """What models say while they say it, for people to watch (`journal.speaking`)."""
        return self.root / "mind.jsonl"

    @property
    def vault(self) -> Path:
        return self.evaluator / "vault.jsonl"

    @property
    def trees(self) -> Path:
        return self.evaluator / "trees"

    @property
    def scratch(self) -> Path:
        return self.evaluator / "scratch"

    @property
    def hidden(self) -> Path:
        return self.evaluator / "hidden"


@dataclass(frozen=True)
class Home:
    """All that one user's rsi keeps on this machine."""

    root: Path

    @property
    def journal(self) -> Path:
        return self.root / "home.jsonl"

    @property
    def anchor(self) -> Path:
        """Newest line of the home's own journal."""
        return self.root / "anchors" / "home"

    @property
    def mirrors(self) -> Path:
        return self.root / "mirrors"

    @property
    def campaigns(self) -> Path:
        return self.root / "campaigns"

    @property
    def library(self) -> Path:
        return self.root / "library"

    @property
    def imports(self) -> Path:
        return self.root / "imports"

    def campaign(self, campaign_id: str) -> CampaignPaths:
        return CampaignPaths(self.campaigns / campaign_id, self.root / "evaluator" / campaign_id)


def find_home() -> Home:
    """The home named by RSI_HOME, else $XDG_DATA_HOME/rsi, else ~/.local/share/rsi."""
    if explicit := os.environ.get("RSI_HOME"):
        return Home(Path(explicit).expanduser().absolute())
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Home((Path(data).expanduser() / "rsi").absolute())


def host_lease() -> Path:
    """The lock file that serialises timed trials over all homes and users of this machine."""
    return Path(tempfile.gettempdir()) / "rsi-host.lease"
