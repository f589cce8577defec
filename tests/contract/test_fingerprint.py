"""Under which changes of a contract an old verdict still speaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsi_tui.contract.fingerprint import terms_hash
from rsi_tui.contract.load import load_contract
from rsi_tui.contract.model import Contract

TINY = Path(__file__).parents[1] / "workloads" / "tiny"


def terms(contract: Contract) -> str:
    return terms_hash(contract.model_dump(mode="json"))


@pytest.mark.parametrize(
    ("part", "change", "same"),
    [
        ("proof", {"aa_pairs": 30}, True), ("launch", {"memory_limit_bytes": 2**33}, True),
        ("invariants", {"precision": "bf16"}, False), ("launch", {"threads": 2}, False), ("objective", {"margin": 0.0}, False),
    ],
)  # fmt: skip
def test_a_verdict_speaks_while_what_was_asked_is_the_same(part: str, change: dict[str, object], same: bool) -> None:
    contract = load_contract(TINY, "quick")
    other = contract.model_copy(update={part: getattr(contract, part).model_copy(update=change)})
    assert (terms(contract) == terms(other)) == same


def test_a_full_campaign_remembers_what_a_quick_one_saw() -> None:
    assert terms(load_contract(TINY, "quick")) == terms(load_contract(TINY, "full"))
