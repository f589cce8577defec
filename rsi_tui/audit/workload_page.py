"""What a campaign works on: the program and its contract, what must hold and by which limits, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Iterator

from rsi_tui.audit import words
from rsi_tui.audit.pages import Page, Section
from rsi_tui.audit.profile_page import profile_data, profile_page
from rsi_tui.contract.model import Contract
from rsi_tui.journal.view import CampaignView


def workload_page(view: CampaignView, width: int = words.WIDTH) -> Page:
    """The page of a campaign's workload; sections that nothing is known of yet are left out."""
    if view.created is None:
        return Page("workload", (), {})
    contract = Contract.model_validate(view.created.contract)
    sections = [
        Section("Program", tuple(_folded(_program(view, contract), width))),
        Section("What may change", tuple(_folded(_scope(contract), width))),
        Section("What must hold", tuple(_folded(_invariants(view, contract), width))),
    ]
    if view.profile is not None:
        sections.append(Section("A step of the program as it is", tuple(profile_page(profile_data(view), width - 4).splitlines()[2:])))
    return Page(f"{view.workload}: the workload of {view.id}", tuple(sections), {})


def _folded(entries: Iterator[tuple[str, str]], width: int) -> Iterator[str]:
    """Label and text in two columns; without a label the text alone."""
    for label, text in entries:
        yield from words.wrapped(text, width - 4, f"{label:<11}" if label else "", " " * 11 if label else "  ")


def _program(view: CampaignView, contract: Contract) -> Iterator[tuple[str, str]]:
    assert view.created is not None
    launch, objective = contract.launch, contract.objective
    yield "folder", f"{words.one_line(view.created.folder)}, commit {view.created.base_commit[:12]}, preset {contract.preset or '(none)'}"
    yield "command", f"{words.one_line(launch.command)}"
    processes = f"{launch.procs_per_node} process{'es' if launch.procs_per_node > 1 else ''}"
    nodes = f", {words.plural(launch.nodes, 'node')} of {processes}" if launch.nodes > 1 else ""
    link = f" joined by {launch.link}" if launch.link else ""
    yield "resources", f"{words.plural(launch.threads, 'thread')}, {words.size(launch.memory_limit_bytes)} of memory{nodes}{link}, at most {launch.timeout_s:g} s a run"
    yield "objective", f"{objective.kind.replace('_', ' ')} over {objective.steps[0]} to {objective.steps[1]} steps, {objective.warmup} to warm up, start-up spread over {objective.amortise_over:,} steps"
    yield "machine", f"{', '.join(f'{name} {value}' if name not in ('hardware', 'software') else value for name, value in sorted(view.created.host.items()))}"


def _scope(contract: Contract) -> Iterator[tuple[str, str]]:
    yield "files", f"{', '.join(contract.editable)}; everything else is frozen and hashed"
    for knob in contract.knobs:
        values = ", ".join(f"{value!r}" if value != "" else "''" for value in knob.values)
        affects = f"; affects {', '.join(knob.affects)}" if knob.affects else ""
        yield "", f"{knob.name} ({knob.layer}): {values}, default {knob.default!r}{affects}"
    for rule in contract.rules:
        yield "rule", f"{rule}"


def _invariants(view: CampaignView, contract: Contract) -> Iterator[tuple[str, str]]:
    invariants = contract.invariants
    yield "weights", f"{invariants.weights}, numbers may be rounded to {invariants.precision}; harmless: {', '.join(invariants.harmless) or 'nothing named'}"
    if invariants.validation:
        yield "hidden", f"{words.one_line(invariants.validation)}"
    bands = view.calibrated.bands if view.calibrated is not None else ()
    for band in bands:
        seen = f"harmless changes reached {band.harmless_max:.3g}" if band.harmless_max else "nothing harmless moves it"
        yield "", f"{band.name}: limit {band.limit:.3g}; {seen}"
    if not bands:
        yield "", "limits are measured with the baseline" if not view.over else "no limits were measured"
