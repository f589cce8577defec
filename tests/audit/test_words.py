"""Columns hold whatever the text is made of."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from rsi_tui.audit import words

CHINESE = "批次大小必须能被四整除，当前值为三，请检查配置文件中的设置，并重新启动训练程序"
TEXTS = (
    CHINESE, f"ValueError: {CHINESE} (config.yaml)", "損失が NaN になりました 학습률을 낮추세요 " * 5, "🚀 " * 60, "x" * 200,
    "plain words that wrap as they always did " * 5, "é" * 90,
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("width", [40, 79])
def test_no_line_is_longer_than_its_columns_and_nothing_is_lost(text: str, width: int) -> None:
    for first, rest in (("", ""), ("      7  ", " " * 9), ("  ", "    ")):
        lines = words.fold(words.one_line(text), width, first, rest)
        assert max(map(cell_len, lines)) <= width
        assert lines[0].startswith(first) and all(line.startswith(rest) for line in lines[1:])
        said = lines[0][len(first) :] + "".join(line[len(rest) :] for line in lines[1:])
        assert "".join(said.split()) == "".join(text.split())


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_cut_line_and_a_cell_take_the_columns_they_are_given(text: str) -> None:
    assert cell_len(words.one_line(text, 24)) <= 24
    assert cell_len(words.padded(words.one_line(text, 24), 24)) == 24
    assert all(cell_len(line) <= 79 for line in words.entry("cause", text)) or " " not in text.strip()


def test_a_page_is_as_wide_as_the_terminal_within_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, width in (("20", 40), ("60", 59), ("200", words.WIDTH)):
        monkeypatch.setenv("COLUMNS", columns)
        assert words.columns() == width
