"""What is planted before a campaign has to be caught, else there is no campaign; what was caught once holds for the next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rsi_tui.audit.check_page import check_data, check_page, summary
from rsi_tui.errors import ContractError, GateError
from rsi_tui.evaluator.redteam.live import LiveCheat, LiveOutcome
from rsi_tui.journal.events import RedTeamed
from rsi_tui.journal.facts import CandidateFacts, PlantedFacts
from rsi_tui.journal.view import load_campaign
from rsi_tui.locations import Home
from rsi_tui.loop import checking
from rsi_tui.loop.challenge import challenge
from rsi_tui.loop.checking import check
from rsi_tui.loop.unresumed import Program
from rsi_tui.minds.builtin.mind import BuiltinMind
from tests.support.campaigns import TINY, tiny_repository
from tests.support.loops import Bench, Oracle, bench


class Watchful(Oracle):
    """An evaluator that catches all that is run, but what it is blind to."""

    blind: tuple[str, ...] = ()
    ran: list[str]

    def challenge(self, step: str, cheats: Sequence[LiveCheat]) -> LiveOutcome:
        self.ran = [*getattr(self, "ran", []), *(cheat.name for cheat in cheats)]
        forged = (PlantedFacts(name="every step reported twice", kind="lines", evaluator=("twice",), ran=True),)
        return LiveOutcome({c.name: () if c.name in self.blind else ("learned update",) for c in cheats}, forged)

    def escapes(self, *, everything: bool) -> tuple[PlantedFacts, ...]:
        return (PlantedFacts(name="mount", kind="escape", evaluator=("nothing",), ran=True),)


def opened(folder: Path, blind: tuple[str, ...] = ()) -> Bench:
    made = bench(folder, BuiltinMind())
    oracle = Watchful(made.oracle.original, made.oracle.steps)
    oracle.blind = blind
    made.ctx.evaluator = oracle  # type: ignore[assignment]
    return made


@pytest.fixture(scope="module")
def challenged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bench, RedTeamed]:
    """A campaign whose challenge was passed, and its folder."""
    folder = tmp_path_factory.mktemp("challenged")
    made = opened(folder)
    return folder, made, challenge(made.ctx)


Challenged = tuple[Path, Bench, RedTeamed]


def test_six_cheats_of_different_kinds_are_run_and_the_others_meet_the_review(challenged: Challenged) -> None:
    found = challenged[2]
    assert found.through == ()
    ran = [p for p in found.planted if p.kind == "cheat" and p.ran]
    assert len(ran) >= 6, "and those that the review was expected to see and does not, in this program"
    assert len({p.family for p in ran}) >= 4
    assert sum(not p.review for p in ran) >= 3, "half of them are not what a review would see"
    assert sum(bool(p.review) for p in found.planted) >= 20
    assert {p.kind for p in found.planted} == {"cheat", "lines", "escape"}


def test_a_cheat_that_nothing_catches_ends_the_campaign_with_its_name(challenged: Challenged, tmp_path: Path) -> None:
    names = {p.name for p in challenged[2].planted if p.kind == "cheat" and p.ran and not p.review}
    blind = min(names)
    with pytest.raises(GateError, match=blind) as refused:
        challenge(opened(tmp_path, blind=(blind,)).ctx)
    assert refused.value.exit_code == 3


def test_a_resumed_campaign_does_not_plant_again(challenged: Challenged) -> None:
    folder, made, first = challenged
    again = bench(folder, BuiltinMind(), events=made.writer.events)
    again.ctx.evaluator = None  # type: ignore[assignment]
    assert challenge(again.ctx) == first


def test_a_cheat_is_no_candidate(challenged: Challenged) -> None:
    made = challenged[1]
    assert [type(event.body) for event in made.writer.events] == [RedTeamed]
    assert made.ctx.candidates_left == 8


def test_a_program_whose_only_run_failed_is_not_checked_to_be_good(tmp_path: Path) -> None:
    made = opened(tmp_path)

    def failed(step: str, candidate: CandidateFacts) -> str:
        assert candidate is made.oracle.original
        return "crashed: exit status 1"

    made.ctx.evaluator.check_runs = failed  # type: ignore[method-assign]
    with pytest.raises(ContractError, match=r"one of two runs as crashed: exit status 1$"):
        checking._measured(made.ctx, everything=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_check_of_a_real_program_passes_and_the_next_one_takes_it_over(tmp_path: Path) -> None:
    text = (TINY / "workload.toml").read_text().replace("red_team = false", "red_team = true")
    repository = tiny_repository(tmp_path / "tiny", workload__toml=text)
    home = Home(tmp_path / "home")
    first = check(home, Program(repository, "quick"))
    view = load_campaign(home, first.check)
    assert view.red_team is not None
    assert first.passed, view.red_team.through
    assert [p.name for p in view.red_team.planted if p.ran and not p.evaluator] == [], "the evaluator alone catches what it ran"
    data = check_data(view)
    assert data["passed"] and "PASSED" in check_page(data)

    second = check(home, Program(repository, "quick"))
    taken_over = load_campaign(home, second.check).red_team
    assert taken_over is not None and taken_over.origin == first.check
    assert "nothing got through" in summary(taken_over)


def checked(folder: Path, *replaced: tuple[str, str]) -> RedTeamed:
    """What a real check of the tiny workload finds, with its contract changed."""
    text = (TINY / "workload.toml").read_text()
    for old, new in (("red_team = false", "red_team = true"), ("aa_pairs = 4", "aa_pairs = 2"), *replaced):
        assert old in text
        text = text.replace(old, new)
    home = Home(folder / "home")
    made = check(home, Program(tiny_repository(folder / "tiny", workload__toml=text), "quick"))
    found = load_campaign(home, made.check).red_team
    assert found is not None
    return found


HONEST_METRIC = 'validation = "python evaluate.py --checkpoint {checkpoint} --data {hidden}"'


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_metric_that_does_not_look_at_the_weights_is_refused_with_the_baseline(tmp_path: Path) -> None:
    blind = """validation = 'python -c "print(\\"val_loss 5.0\\")" {checkpoint} {hidden}'"""
    with pytest.raises(ContractError, match="before the first step and 5 after the last"):
        checked(tmp_path, (HONEST_METRIC, blind))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_metric_that_counts_steps_does_not_tell_a_program_that_counts_and_learns_nothing(tmp_path: Path) -> None:
    counts = (
        """validation = 'python -c "import sys, torch; """
        """print(\\"val_loss\\", 100 - torch.load(sys.argv[1])[\\"step\\"])" {checkpoint} {hidden}'"""
    )
    found = checked(tmp_path, (HONEST_METRIC, counts))
    assert found.through == ("validated: the initial weights handed in", "validated: random updates of the right size")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_where_what_is_learned_may_differ_one_run_refuses_no_contract(tmp_path: Path) -> None:
    found = checked(
        tmp_path,
        ('weights = "equivalent"', 'weights = "statistical"'),
        ("[invariants]", "[invariants]\nloss_margin = 0.01"),
    )
    assert found.through == ()
    assert {p.kind for p in found.planted} == {"cheat", "lines", "metric", "escape"}
    assert all(p.caught for p in found.planted if p.kind == "metric")
