"""The Executor as an agent: exact edits in a private copy, commands in the sandbox, and nothing half-applied."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import Contract
from rsi_tui.errors import PatchError
from rsi_tui.minds.claude.redact import MARK
from rsi_tui.minds.claude.smoke import runs
from rsi_tui.minds.claude.workbench import Ended, Workbench
from rsi_tui.minds.protocol import ChangeAnswer, ExecutorBrief, HypothesisAnswer
from tests.support.campaigns import TINY, tiny_repository
from tests.support.claude_script import Play, edits, tool
from tests.support.messages_api import KEY, MessagesApi, Text, Tool, Turn, messages_api
from tests.support.model import Journal, lodged, room

FILES = {path.name: path.read_text() for path in sorted(TINY.glob("*.py"))} | {"workload.toml": (TINY / "workload.toml").read_text()}
HYPOTHESIS = HypothesisAnswer(
    parent="original", statement="A shorter batch loop makes a step faster.", techniques=(), knobs={}, predicted_time=-0.1,
    predicted_memory=0.0, refuted_by="no effect",
)  # fmt: skip
LINE = ("train.py", "batch_size = 4\n", "batch_size = 4\nfused = True\n")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Contract:
    return load_contract(tiny_repository(tmp_path_factory.mktemp("tiny") / "tiny"), "quick")


class Shop:
    """An Executor with a server of its own."""

    def __init__(self, folder: Path, api: MessagesApi, contract: Contract, **more: object) -> None:
        self.api, self.journal, self.folder = api, Journal(), folder
        lent = room(folder, self.journal, files=FILES, python=Path(sys.executable))
        self.mind = lodged(api, lent, **more)
        sources = {name: FILES[name] for name in ("train.py", "model.py")}
        self.brief = ExecutorBrief(contract, None, HYPOTHESIS, sources, dict(contract.defaults), parent_commit="abc")

    def execute(self, **more: object) -> ChangeAnswer:
        return self.mind.execute(replace(self.brief, **more))  # type: ignore[arg-type]

    def results(self, turn: int = -1) -> str:
        """What the tools of a turn returned."""
        return self.api.account.requests[turn].last


Open = Callable[..., Shop]


@pytest.fixture
def shop(tmp_path: Path, contract: Contract) -> Iterator[Open]:
    with contextlib.ExitStack() as stack:

        def make(*turns: Turn, **more: object) -> Shop:
            script = Play(executor=list(turns))
            at = Shop(tmp_path, stack.enter_context(messages_api(script)), contract, **more)
            stack.callback(at.mind.leave)
            return at

        yield make


def test_edits_of_several_files_come_back_as_one_change(shop: Open) -> None:
    second = ("model.py", "import math\n", "import math\nimport functools\n")
    at = shop(*edits(LINE, second, knobs=[{"name": "micro_batch", "value": 4}]))
    change = at.execute()
    assert change.sources.keys() == {"train.py", "model.py"} and "fused = True" in change.sources["train.py"]
    assert change.knobs == {"micro_batch": 4} and change.techniques == ()
    assert [call.outcome for call in at.journal.calls] == ["answered"] * 4
    assert at.api.account.refused == []


def test_a_conversation_is_cached_turn_by_turn(shop: Open) -> None:
    at = shop(*edits(LINE))
    at.execute()
    used = at.api.account.by_role["executor"]
    assert used[0]["cache_read_input_tokens"] == 0 and all(u["cache_read_input_tokens"] > 2000 for u in used[1:])
    assert all(u["input_tokens"] < 200 for u in used[1:])


REFUSED = [
    (("train.py", "no such line", "x"), "line"),
    (("train.py", "step", "x"), "times"),
    (("evaluate.py", "import", "x"), "may not be changed"),
    (("workload.toml", "tiny", "x"), "may not be changed"),
    (("../train.py", "import", "x"), "may not be changed"),
    (("/etc/passwd", "root", "x"), "may not be changed"),
    ((".git/config", "x", "y"), "may not be changed"),
    (("data.py", "import", "x"), "may not be changed"),
]


@pytest.mark.parametrize(("edit", "says"), REFUSED, ids=[edit[0] + " " + edit[1] for edit, _ in REFUSED])
def test_an_edit_that_does_not_fit_is_refused_and_changes_nothing(shop: Open, edit: tuple[str, str, str], says: str) -> None:
    path, old, new = edit
    at = shop(tool("edit_file", path=path, old=old, new=new), tool("give_up", reason="it can't be done"))
    with pytest.raises(PatchError, match="it can't be done"):
        at.execute()
    assert says in at.results()


def test_what_does_not_parse_or_run_can_not_be_submitted(shop: Open) -> None:
    broken = tool("edit_file", path="model.py", old="import math\n", new="import math\nimport maths_that_is_not\n")
    half = tool("edit_file", path="train.py", old="batch_size = 4\n", new="batch_size = = 4\n")
    mend = tool("edit_file", path="train.py", old="batch_size = = 4\n", new="batch_size = 4\n")
    at = shop(half, tool("submit", note="x"), mend, broken, tool("submit", note="y"), tool("give_up", reason="no library"))
    with pytest.raises(PatchError, match="no library"):
        at.execute()
    assert "no valid Python" in at.results(2)
    assert "maths_that_is_not" in at.results(5) and "does not run" in at.results(5)


def test_nothing_changed_is_nothing_to_submit(shop: Open) -> None:
    at = shop(tool("submit", note="x"), tool("give_up", reason="nothing to do"))
    with pytest.raises(PatchError, match="nothing to do"):
        at.execute()
    assert "nothing is changed" in at.results()


def test_a_command_sees_the_edits_and_neither_network_nor_key_nor_the_evaluators_files(shop: Open) -> None:
    look = "grep -c fused train.py; ls; env; ls evaluate.py make_hidden.py; ls /work /root /home 2>&1 | head; cat /proc/net/dev"
    write = "ln -s /etc/passwd model2.py; echo evil > model.py; echo gone > train.py; exit 3"
    at = shop(
        tool("edit_file", path=LINE[0], old=LINE[1], new=LINE[2]), tool("run_command", command=look), tool("run_command", command=write),
        tool("read_file", path="model.py"), tool("read_file", path="model2.py"), tool("submit", note="x"),
    )  # fmt: skip
    change = at.execute()
    seen = at.results(2)
    assert KEY not in seen and "ANTHROPIC" not in seen and "eth0" not in seen
    assert "cannot access 'evaluate.py'" in seen and "cannot access 'make_hidden.py'" in seen
    assert "exit code 3" in at.results(3)
    assert "class Attention" in at.results(4) and "does not exist" in at.results(5)
    assert change.sources.keys() == {"train.py"} and change.sources["train.py"] == FILES["train.py"].replace(LINE[1], LINE[2])
    assert list((at.folder / "scratch").iterdir()) == []


def test_a_short_run_can_be_profiled(shop: Open) -> None:
    at = shop(tool("profile_run", steps=2), tool("give_up", reason="enough"))
    with pytest.raises(PatchError):
        at.execute()
    assert "exit code 0" in at.results() and "aten::" in at.results() and "Self CPU" in at.results()


def test_a_command_is_bounded(shop: Open) -> None:
    at = shop(tool("run_command", command="sleep 30", seconds=1), tool("run_command", command="yes | head -c 3000000"), tool("give_up", reason="enough"))
    with pytest.raises(PatchError, match="enough"):
        at.execute()
    assert "killed for timeout" in at.results(1) and len(at.results(2)) < 20_000


def test_reading_and_searching_show_what_there_is(shop: Open) -> None:
    at = shop(
        tool("search", text="LOGITS.view"), tool("search", text="no such thing"), tool("read_file", path="train.py", first=1, last=3),
        tool("read_file", path="evaluate.py"), tool("read_file", path="data.py", first=99_999), tool("give_up", reason="enough"),
    )  # fmt: skip
    with pytest.raises(PatchError):
        at.execute()
    assert "model.py:" in at.results(1) and "no line holds it" in at.results(2)
    assert "lines 1 to 3 of" in at.results(3) and "does not exist" in at.results(4) and "has " in at.results(5)


def test_bytes_that_are_no_text_and_halves_of_characters_are_sent_as_marks(shop: Open) -> None:
    at = shop(Turn((Tool("search", raw='{"text": "\\ud800"}'),)), tool("read_file", path="model.py"), tool("give_up", reason="enough"))
    with pytest.raises(PatchError, match="enough"):
        at.execute(sources={**at.brief.sources, "model.py": "caf\udce9 = 1\n"})
    assert "caf\ufffd = 1" in at.results(2) and [call.attempts for call in at.journal.calls] == [()] * 3


def test_loops_end(shop: Open) -> None:
    at = shop(tool("read_file", path="train.py"))
    with pytest.raises(PatchError, match="circles"):
        at.execute()
    assert 4 <= len(at.api.account.requests) <= 6


def test_turns_end(shop: Open) -> None:
    reads = [tool("read_file", path="train.py", first=n) for n in range(1, 30)]
    at = shop(*reads, max_turns=6)
    with pytest.raises(PatchError, match="6 turns"):
        at.execute()
    assert len(at.api.account.requests) == 6


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        (Turn((Text("No."),), stop="refusal"), "refused"), (Turn((Text("Hm."),)), "no tool"), (Turn((), thinking=""), "empty"),
        (Turn((Tool("edit_file", raw='{"path": "tra'),)), "no JSON"), (Turn((Text("I"),), stop="max_tokens"), "truncated"),
    ],
    ids=["refusal", "text", "empty", "malformed", "truncated"],
)  # fmt: skip
def test_answers_of_no_use_end_without_a_change(shop: Open, turn: Turn, says: str) -> None:
    at = shop(tool("edit_file", path=LINE[0], old=LINE[1], new=LINE[2]), turn)
    with pytest.raises(PatchError, match=says):
        at.execute()
    assert at.api.account.refused == []


def test_one_malformed_input_is_told_and_mended(shop: Open) -> None:
    first = Turn((Tool("edit_file", raw='{"path": "train.py", "old": "batch'), Tool("list_files")))
    at = shop(first, *edits(LINE)[1:])
    assert at.execute().sources
    assert "no JSON object" in at.results(1) and at.api.account.refused == []


def test_room_is_made_when_the_conversation_is_too_long(shop: Open) -> None:
    reads = [tool("read_file", path="model.py", first=n) for n in range(1, 12)]
    at = shop(*reads, *edits(LINE)[1:])
    at.api.context_tokens = 9000
    assert at.execute().sources
    assert "too_long" in [call.outcome for call in at.journal.calls]
    assert "left out to make room" in at.api.account.requests[-1].text


def test_secrets_in_files_and_output_do_not_reach_the_model(shop: Open) -> None:
    at = shop(tool("run_command", command=f"echo token: {'ghp_' + 'a1B2' * 9}"), tool("give_up", reason="enough"))
    with pytest.raises(PatchError):
        at.execute()
    assert MARK in at.results() and "ghp_a1B2" not in at.results()


def test_a_known_technique_is_applied_without_a_model(shop: Open) -> None:
    at = shop(tool("give_up", reason="not asked"))
    change = at.execute(hypothesis=replace(HYPOTHESIS, techniques=("sdpa",)))
    assert "scaled_dot_product_attention" in change.sources["model.py"] and at.api.account.requests == []


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ([Ended(False, True, "killed for timeout"), Ended(True, False, "exit code 0")], False),
        ([Ended(False, True, "killed for timeout")] * 2, True),
        ([Ended(False, False, "exit code 1")], True),
    ],
    ids=["late once", "late twice", "broken"],
)
def test_a_busy_machine_refuses_no_change(contract: Contract, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: list[Ended], refused: bool) -> None:
    """What is too late beside a parent that is not is tried once more; what fails is not."""
    bench = Workbench(room(tmp_path, Journal(), files=FILES, python=Path(sys.executable)), contract, "base", FILES)
    left, asked = list(changed), list[bool]()

    def try_out(command: str, seconds: int, *, unchanged: bool = False) -> Ended:
        asked.append(unchanged)
        return Ended(True, False, "exit code 0") if unchanged else left.pop(0)

    monkeypatch.setattr(bench, "try_out", try_out)
    assert bool(runs(bench, contract, contract.defaults)) is refused
    assert left == [] and asked.count(False) == len(changed)
