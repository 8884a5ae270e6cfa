"""Wider forms of merging rules: found from the narrow rule, kept only if proved."""

from taso_py.generate.widen import widen_rules
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules
from taso_py.rules.verdict import Numerics, Outcome, Verdict
from verify import prove

MERGE = """rule x: float[..G,M,K], a: float[N,K], b: float[P,K]
  source linear(x, a), linear(x, b)
  target t = linear(x, concat(a, b){axis=-2}); slice(t){axis=-1, start=0, stop=N}, slice(t){axis=-1, start=N, stop=N+P}
"""


def test_a_merge_of_two_becomes_a_merge_of_three_and_of_four() -> None:
    three, wide = widen_rules(read_rules(MERGE), prove)
    assert three.size == (3, 5)
    assert len(wide.source.outputs) == len(wide.target.outputs) == 4
    assert wide.size == (4, 6)
    assert (wide.proof, wide.numerics) == ("derived", Numerics.REORDER)


def test_what_is_not_proved_is_not_kept() -> None:
    def refuse(_rule: Substitution) -> Verdict:
        return Verdict(Outcome.UNKNOWN, "the limit is reached")

    assert widen_rules(read_rules(MERGE), refuse) == []
    assert widen_rules(read_rules(MERGE.replace("concat(a, b)", "concat(b, a)")), prove) == []


def test_other_rules_have_no_wider_form() -> None:
    others = """rule x: float[N] source relu(relu(x)) target relu(x)
    rule x: float[N], y: float[N] source tanh(x), tanh(y)
      target t = tanh(concat(x, y){axis=-1}); slice(t){axis=-1, start=N, stop=2*N}, slice(t){axis=-1, start=0, stop=N}
    """
    assert widen_rules(read_rules(others), prove) == []
