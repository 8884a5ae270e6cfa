"""The generator end to end on a small vocabulary, with the real prover; pruning by derivation."""

from __future__ import annotations

import pytest

from taso_py.generate.pipeline import Config, Generation, generate
from taso_py.generate.vocabulary import DATA, FUSED, WEIGHT, Family, Half, Production, Variables
from taso_py.ir.errors import TasoError
from taso_py.ops.contraction import Linear
from taso_py.ops.elementwise import Add, LeakyRelu, Maximum, Mul, Relu, Sub
from taso_py.ops.evaluate import Domain
from taso_py.ops.movement import Concat
from taso_py.rules.substitution import Substitution
from taso_py.rules.text import read_rules, write_rules
from taso_py.rules.verdict import Outcome, Verdict
from verify import prove

pytest.importorskip("egglog")

SMALL = Family(
    "small",
    (Variables("x", (3, 2), DATA, 2), Variables("w", (2, 2), WEIGHT, 2)),
    (
        Production(Add(), "ww"),
        Production(Linear(), "dw"),
        Production(Relu(), "d"),
        Production(Concat(-2), ".."),
        Production(Half(-1, 0), "."),
    ),
    operators=3,
    split_axes=(-1,),
)


@pytest.fixture(scope="module")
def small() -> Generation:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taso_py.generate.pipeline.VOCABULARIES", {"small": (SMALL,)})
        return generate(Config(("small",)), prove)


def _statements(generation: Generation) -> list[str]:
    return [" ".join(rule.statement.split()) for rule in generation.rules]


def test_the_merge_of_linears_is_found_and_proved(small: Generation) -> None:
    merge = (
        "a: float[..A,B], b: float[C,B], c: float[D,B] source linear(a, b), linear(a, c) "
        "target t0 = linear(a, concat(b, c){axis=-2}); "
        "slice(t0){axis=-1, start=0, stop=C}, slice(t0){axis=-1, start=C, stop=C+D}"
    )
    assert merge in _statements(small)
    assert "a: float[..A] source relu(relu(a)) target relu(a)" in _statements(small)


def test_every_rule_is_proved_as_it_is_written(small: Generation) -> None:
    for rule in read_rules(write_rules(small.rules)):
        verdict = prove(rule)
        assert verdict.outcome is Outcome.PROVED
        assert verdict.numerics is rule.numerics


def test_nothing_is_derivable_or_only_adds(small: Generation) -> None:
    statements = _statements(small)
    assert len(statements) == len(set(statements))
    assert not any("target relu(relu(a))" in statement for statement in statements)
    assert small.report.outcomes["an instance of a rule"] > 0
    assert small.report.outcomes["only adds"] > 0


def test_what_is_not_proved_is_reported_and_left_out() -> None:
    def refuse(_rule: Substitution) -> Verdict:
        return Verdict(Outcome.UNKNOWN, "not today")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taso_py.generate.pipeline.VOCABULARIES", {"small": (SMALL,)})
        found = generate(Config(("small",), max_operators=2), refuse)
    assert found.rules == ()
    assert {fate.detail for fate in found.report.unproved} == {"not today"}


def test_an_unknown_vocabulary_is_one_line() -> None:
    said = "no vocabulary is called everything; there are absorbed, activations, algebra, angles, arrays"
    with pytest.raises(TasoError, match=said):
        Config(("everything",))


@pytest.mark.parametrize(("slope", "domain", "found"), [
    (0.25, Domain.REAL, 1),
    (0.25, Domain.EXACT, 0),
    (2.0, Domain.REAL, 0),
])  # fmt: skip
def test_what_is_true_of_real_numbers_only_is_found_where_terms_are_compared_on_them(
    slope: float, domain: Domain, found: int
) -> None:
    family = Family(
        "slopes",
        (Variables("x", (4,), DATA, 1), Variables("c", (), "c", 1, number=slope)),
        (
            Production(Mul(), DATA + "c", "s"),
            Production(Maximum(), DATA + "s", "o"),
            Production(LeakyRelu(slope), DATA, FUSED),
        ),
        operators=2,
        every=True,
        domain=domain,
    )
    rules = generate(Config(vocabularies=(), families=(family,)), prove).rules
    assert [rule.target.outputs[0].node.op for rule in rules] == [LeakyRelu(slope)] * found


@pytest.mark.parametrize("repeats", [True, False])
def test_squares_are_found_where_variables_may_be_repeated_on_both_sides(repeats: bool) -> None:
    family = Family(
        "differences of squares",
        (Variables("x", (4,), DATA, 1), Variables("y", (4,), "y", 1)),
        (
            Production(Mul(), DATA * 2, "a"),
            Production(Mul(), "yy", "b"),
            Production(Sub(), "ab", "o"),
            Production(Add(), DATA + "y", "p"),
            Production(Sub(), DATA + "y", "m"),
            Production(Mul(), "pm", FUSED),
        ),
        operators=3,
        every=True,
        repeats=repeats,
    )
    rules = generate(Config(vocabularies=(), families=(family,)), prove).rules
    assert {rule.target.outputs[0].node.op for rule in rules} == ({Mul()} if repeats else set())
