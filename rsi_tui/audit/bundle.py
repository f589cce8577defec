"""A campaign as one file that can be verified elsewhere: journal, reports, the adopted code changes.

Nothing of the evaluator's folder but what the journal reveals itself, no hidden data, and of the program no more than
the changes: its history may hold what its owner does not give away. The same campaign gives the same bytes.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path

from rsi_tui.audit import words
from rsi_tui.audit.html import render_html
from rsi_tui.audit.payback import Usage
from rsi_tui.audit.report import DIFF_FILE, adopted_diff, as_json, render_markdown, report_data
from rsi_tui.audit.verify import REPORTS, SHOWN, Verified, all_compared, verify_files
from rsi_tui.audit.written_reports import Compared, Difference, differing_lines
from rsi_tui.errors import JournalError, RsiError, UsageError
from rsi_tui.journal import chain
from rsi_tui.journal.blobs import SUFFIX as BLOB
from rsi_tui.journal.blobs import Blobs, revealed_in
from rsi_tui.journal.view import CampaignView
from rsi_tui.locations import Home

JOURNAL = "journal.jsonl"
SUFFIX = ".rsi.tar.gz"
MOST_BYTES = 2**30
"""unpacked; a bundle that claims more is not opened. A campaign of 100,000 runs takes a third of it"""
README = """\
This is the record of one campaign or evaluation of `rsi`, which makes training programs faster and proves it.

    rsi verify FILE.rsi.tar.gz

recomputes every figure in report.json, report.md and report.html from the runs in journal.jsonl, checks that each line
of the journal carries the hash of the one before, and names what does not follow. Begin with report.html. The file with
a hash for its name holds what was drawn in secret, revealed at the end. The output of runs that failed is not in here.
Reports and journal name each other: the last line of a report has the hash of the journal's last line.
"""


def write_bundle(home: Home, campaign: str, target: Path | None = None, usage: Usage | None = None) -> Path:
    """Write the bundle (default: into the campaign's reports folder), whole or not at all; returns its path.

    Raises JournalError when the journal is damaged or its end is lost.
    """
    paths = home.campaign(campaign)
    events = chain.read_events(paths.journal, paths.anchor)
    view = CampaignView().feed_all(events)
    data = report_data(view, events, usage)
    # What was written while this ran is left out: the reports follow from the events that were read.
    lines = paths.journal.read_bytes().split(b"\n")[: len(events)]
    files = {
        "README.txt": README.encode(),
        JOURNAL: b"".join(line + b"\n" for line in lines),
        "report.json": as_json(data).encode(),
        "report.md": render_markdown(data).encode(),
        "report.html": render_html(data).encode(),
    }
    blobs = Blobs(paths.blobs)
    for _, blob in revealed_in(events):
        if trouble := blobs.problem(blob):
            raise JournalError(f"{trouble[:-1]}, and the bundle can't be verified without it; restore it from a copy.")
        files[blobs.path(blob).name] = blobs.path(blob).read_bytes()
    if diff := adopted_diff(view):
        files[DIFF_FILE] = diff.encode("utf-8", "surrogateescape")
    path = target if target is not None else paths.reports / f"{campaign}{SUFFIX}"
    _write_whole(path, _packed(campaign, files))
    return path


def verify_bundle(path: Path) -> Verified:
    """What `rsi verify` says of a bundle; UsageError when the file is none."""
    files = _unpacked(path)
    if JOURNAL not in files:
        raise UsageError(f"{path} holds no {JOURNAL}: it is no bundle of rsi; write one with `rsi report --format bundle`.")
    missing = [name for name in REPORTS if name not in files]
    if missing:
        raise UsageError(f"{path} lacks {', '.join(missing)}: it was cut or repacked; ask for the bundle as it was written.")
    with tempfile.TemporaryDirectory(prefix="rsi-verify-") as folder:
        journal = Path(folder) / JOURNAL
        journal.write_bytes(files[JOURNAL])
        for name in files:
            if name.endswith(BLOB):
                Path(folder, name).write_bytes(files[name])
        texts = [(name, files[name].decode("utf-8", "replace")) for name in REPORTS]
        found = verify_files(journal, texts, Blobs(Path(folder)))
        return all_compared(_with_changes(found, journal, files), str(path))


def _with_changes(found: Verified, journal: Path, files: dict[str, bytes]) -> Verified:
    """The code changes beside the reports are those that the journal holds, and nothing else lies there."""
    try:
        events = chain.read_events(journal)
        follows = adopted_diff(CampaignView().feed_all(events)).encode("utf-8", "surrogateescape")
    except RsiError:
        return found  # of a journal that can't be read nothing follows, and that is said
    says = files.get(DIFF_FILE, b"")
    first = next(differing_lines(says.decode("utf-8", "replace"), follows.decode("utf-8", "replace")), None)
    wrong = [Compared(DIFF_FILE, (first,))] if first is not None else [Compared(DIFF_FILE, ())] if follows else []
    named = {f"{blob.sha256}{BLOB}" for _, blob in revealed_in(events)}
    unknown = sorted(set(files) - {"README.txt", JOURNAL, DIFF_FILE, *REPORTS} - named)
    wrong += [Compared(name, (Difference("the file", "is in the bundle", "nothing of that name"),)) for name in unknown[:SHOWN]]
    return replace(found, reports=(*found.reports, *wrong))


def _packed(campaign: str, files: dict[str, bytes]) -> bytes:
    """A tar of plain files in a fixed order, without times, owners and names of this machine."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{campaign}/{name}")
            member.size, member.mode, member.mtime = len(content), 0o644, 0
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)


def _unpacked(path: Path) -> dict[str, bytes]:
    """Name -> content of the plain files of a bundle, read into memory: nothing is written, so no path can lead astray."""
    found: dict[str, bytes] = {}
    try:
        with gzip.open(path) as packed:
            plain = packed.read(MOST_BYTES + 1)  # whole, so that its checksum is looked at
        if len(plain) > MOST_BYTES:
            raise UsageError(f"{path} unpacks to more than {MOST_BYTES / 2**20:.0f} MiB: no bundle of rsi is as large.")
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                if name in found or not member.isfile():
                    raise UsageError(f"{path} holds {words.one_line(member.name, 80)} twice, or as no plain file: it was not written by rsi.")
                content = archive.extractfile(member)
                assert content is not None, "a plain file has content"
                found[name] = content.read()
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path} and no campaign of that name.") from error
    except (OSError, EOFError, tarfile.TarError, ValueError, zlib.error) as error:
        raise UsageError(f"{path} is no bundle that can be read ({words.one_line(str(error), 120)}): it was cut or is another kind of file.") from error
    return found


def _write_whole(path: Path, content: bytes) -> None:
    half = path.with_name(f".{path.name}.half")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half.write_bytes(content)
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise UsageError(f"{path} can't be written: {error.strerror}.") from error
