"""The vault keeps secrets before they are used and proves later that they were not changed."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsi_tui.errors import JournalError
from rsi_tui.evaluator.vault import Vault

JSON = st.dictionaries(st.text(max_size=8), st.one_of(st.integers(), st.text(max_size=8), st.booleans(), st.none()), max_size=4)


def test_a_secret_survives_the_process_and_its_commitment_stays(tmp_path: Path) -> None:
    path = tmp_path / "e" / "vault.jsonl"
    commitment = Vault(path).put("block/v1", {"order": "ABBA", "seed": 7})
    again = Vault(path)
    assert again.get("block/v1") == {"order": "ABBA", "seed": 7}
    assert again.commitment("block/v1") == commitment
    assert again.get("block/v2") is None and "block/v2" not in again


def test_folder_and_file_are_the_owners_alone(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir(mode=0o755)
    Vault(tmp_path / "e" / "vault.jsonl").put("a", {"x": 1})
    assert stat.S_IMODE((tmp_path / "e").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "e" / "vault.jsonl").stat().st_mode) == 0o600


def test_a_commitment_hides_the_value_and_binds_key_and_value(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "v" / "vault.jsonl")
    one, two = vault.put("a", {"seed": 1}), vault.put("b", {"seed": 1})
    assert one != two
    shown = vault.reveal()
    assert Vault.verify(one, shown["a"])
    assert not Vault.verify(one, shown["b"])
    assert not Vault.verify(one, shown["a"] | {"value": {"seed": 2}})
    assert not Vault.verify(one, shown["a"] | {"key": "b"})
    assert not Vault.verify(one, {})


@given(JSON)
def test_every_revealed_value_verifies_after_a_round_through_json(value: dict[str, object]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        vault = Vault(Path(folder) / "v" / "vault.jsonl")
        commitment = vault.put("k", value)
        assert Vault.verify(commitment, json.loads(json.dumps(vault.reveal()))["k"])
        assert vault.get("k") == value


def test_a_draw_is_never_repeated(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "v" / "vault.jsonl")
    first = vault.put("a", {"seed": 1})
    assert vault.put("a", {"seed": 1}) == first
    with pytest.raises(JournalError):
        vault.put("a", {"seed": 2})
    assert vault.get("a") == {"seed": 1}


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_dropped_and_the_next_one_is_whole(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "v" / "vault.jsonl"
    vault = Vault(path)
    vault.put("a", {"seed": 1})
    vault.put("b", {"seed": 2})
    path.write_bytes(path.read_bytes()[:-cut])
    reopened = Vault(path)
    assert reopened.get("a") == {"seed": 1} and "b" not in reopened
    reopened.put("c", {"seed": 3})
    assert Vault(path).get("c") == {"seed": 3}


def test_damage_before_the_last_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "v" / "vault.jsonl"
    vault = Vault(path)
    vault.put("a", {"seed": 1})
    vault.put("b", {"seed": 2})
    path.write_bytes(b"{" + path.read_bytes())
    with pytest.raises(JournalError, match="line 1"):
        Vault(path)


def test_a_full_disk_leaves_no_half_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v" / "vault.jsonl"
    vault = Vault(path)
    vault.put("a", {"seed": 1})

    def no_room(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(JournalError, match="room"):
        vault.put("b", {"seed": 2})
    monkeypatch.undo()
    assert "b" not in vault
    assert "b" not in Vault(path) and Vault(path).get("a") == {"seed": 1}
    with pytest.raises(ValueError):
        vault.put("n", {"x": float("nan")})
