"""The least that rules need: found, and not more than that."""

from __future__ import annotations

from pathlib import Path

import pytest

from taso_py.rules.text import read_rules
from verify.audit.weakest import main, weakest

GROUPED = """rule x: float[N,G*C,H,W], a: float[G*O,C,K,L], b: float[G*P,C,K,L]
  source concat(conv2d(x, a){groups=G}, conv2d(x, b){groups=G}){axis=-3}
  target conv2d(x, concat(a, b){axis=-4}){groups=G}"""
SIDE_BY_SIDE = """rule x: float[N,G*C,H,W], y: float[N,G*C,H,W], a: float[2*G*O,C,K,L], b: float[2*G*P,C,K,L]
  source concat(conv2d(x, a){groups=G}, conv2d(y, b){groups=G}){axis=-3}
  target conv2d(concat(x, y){axis=-3}, concat(a, b){axis=-4}){groups=2*G}"""
COUNTED = """rule x: float[N,C,H,W]
  source avg_pool2d(x){kernel=[3,3], stride=[S,T], padding=[A,B], count_include_pad=false}
  target avg_pool2d(x){kernel=[3,3], stride=[S,T], padding=[A,B]}"""
TRANSPOSED = """rule x: float[M,N]
  source reshape(x){shape=[N,M]}
  target permute(x){order=[-1,-2]}"""
ADJACENT = """rule x: float[..B,K,N]
  source concat(slice(x){axis=-2, start=S, stop=T}, slice(x){axis=-2, start=U, stop=V}){axis=-2}
  target slice(x){axis=-2, start=S, stop=T+V-U}"""
FALSE = """rule x: float[M,N], y: float[M,N]
  source relu(sub(x, y))
  target sub(relu(x), relu(y))"""
TRUE = """rule x: float[M,N]
  source permute(permute(x){order=[-1,-2]}){order=[-1,-2]}
  target relu(relu(x))"""


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        (GROUPED, ["G-1 == 0"]),
        (SIDE_BY_SIDE, ["O-P == 0"]),
        (COUNTED, ["A == 0, B == 0"]),
        (TRANSPOSED, ["M-1 == 0", "N-1 == 0"]),
        (ADJACENT, ["T-U == 0"]),
        (FALSE, []),
        (TRUE.replace("relu(relu(x))", "x"), [""]),
    ],
)
def test_the_least_that_is_needed(text: str, needed: list[str]) -> None:
    found = weakest(read_rules(text)[0], most=2)
    assert [", ".join(map(str, conditions)) for conditions in found] == needed


def test_each_direction_on_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.rules").write_text(ADJACENT)
    assert main([str(tmp_path / "a.rules")]) == 0
    assert "forward needs T-U == 0" in capsys.readouterr().out
    (tmp_path / "b.rules").write_text(FALSE)
    assert main([str(tmp_path / "b.rules")]) == 1
    assert "backward needs no 3 equalities suffice" in capsys.readouterr().out
    assert main([str(tmp_path / "c.rules")]) == 2
