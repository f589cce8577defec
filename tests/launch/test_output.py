import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsi_tui.launch import output
from rsi_tui.launch.output import Output


def collect(*pieces: bytes, log=None) -> Output:
    out = Output(log)
    for at, piece in enumerate(pieces):
        out.feed(piece, float(at))
    out.finish()
    return out


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ((b"a\nb\n",), [(0.0, "a"), (0.0, "b")]),
        ((b"a", b"b\n"), [(1.0, "ab")]),
        ((b"10%\r20%\r", b"30%\n"), [(0.0, "10%"), (0.0, "20%"), (1.0, "30%")]),
        ((b"dos\r", b"\nnext\n"), [(0.0, "dos"), (1.0, "next")]),
        ((b"\n\n",), [(0.0, ""), (0.0, "")]),
        ((b"no end",), [(0.0, "no end")]),
        ((b"\xff\xfe\n",), [(0.0, "��")]),
        ((b"\xe2\x82", b"\xac\n"), [(1.0, "€")]),
        ((b"\x1b[31mred\x1b[0m\n",), [(0.0, "\x1b[31mred\x1b[0m")]),
        ((b"form\x0cfeed\x85\n",), [(0.0, "form\x0cfeed�")]),
        ((), []),
    ],
)
def test_a_line_is_stamped_when_its_end_arrives(pieces, lines):
    assert [(line.at_s, line.text) for line in collect(*pieces).lines()] == lines


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8))
def test_where_the_pipe_cuts_makes_no_difference(data, cuts):
    edges = [0, *sorted(c for c in cuts if c < len(data)), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    whole, cut = collect(data), collect(*pieces)
    assert [line.text for line in whole.lines()] == [line.text for line in cut.lines()]


def test_endless_output_is_kept_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(output, "MAX_LINES", 100)
    monkeypatch.setattr(output, "MAX_BYTES", 1000)
    out = collect(b"x" * 49 + b"\n", *(b"%049d\n" % n for n in range(500)))
    assert [int(line.text) for line in out.lines()] == list(range(480, 500))
    assert out.flags == ("lines_dropped",)


def test_an_endless_line_is_cut():
    out = collect(*[b"y" * 10_000] * 20, b"\nnext\n")
    assert [len(line.text) for line in out.lines()] == [output.MAX_LINE_BYTES, 4]
    assert out.flags == ("long_lines_cut",)


def test_people_see_lines_within_the_flush_time_and_escapes_as_they_are(tmp_path):
    log = tmp_path / "live.log"
    log.write_text("of the trial before")
    out = Output(log)
    assert log.read_bytes() == b""
    out.feed(b"\x1b[1mone\x1b[0m\r", 0.01)
    out.tick(0.05)
    assert log.read_bytes() == b""
    out.tick(0.25)
    assert log.read_bytes() == b"\x1b[1mone\x1b[0m\n"
    out.feed(b"two", 0.3)
    out.finish()
    assert log.read_bytes().splitlines() == [b"\x1b[1mone\x1b[0m", b"two"]


def test_the_live_log_does_not_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "LOG_BYTES", 4 * 2**20)
    log = tmp_path / "live.log"
    out = collect(*[(b"z" * 1000 + b"\n") * 1000] * 12, b"last\n", log=log)
    assert log.stat().st_size <= 4 * 2**20 + 100
    assert log.read_bytes().endswith(b"last\n")
    assert out.flags == ()
