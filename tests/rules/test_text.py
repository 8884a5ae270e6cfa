"""Rules as text: a round trip, identifiers from content, and what is refused."""

import pytest

from taso_py.ir.errors import GraphTextError
from taso_py.ir.sign import Sign
from taso_py.rules.substitution import canonical, with_signs
from taso_py.rules.text import read_rules, write_rules

MERGE = """rule x: float[..G,M,K], a: float[N,K], b: float[P,K]
  source linear(x, a), linear(x, b)
  target t = linear(x, concat(a, b){axis=-2}); slice(t){axis=-1, start=0, stop=N}, slice(t){axis=-1, start=N, stop=N+P}
  where N >= 2
  numerics REORDER
  proof index
"""


def test_a_rule_survives_a_round_trip() -> None:
    rules = read_rules(MERGE)
    assert read_rules(write_rules(rules)) == rules


def test_the_identifier_depends_on_content_not_on_names() -> None:
    renamed = MERGE.replace("x:", "y:").replace("(x,", "(y,").replace("..G", "..H").replace("K", "Q")
    one, other = (canonical(read_rules(text)[0]) for text in (MERGE, renamed))
    assert one == other
    assert one.id == other.id != read_rules(MERGE.replace("N >= 2", "N >= 3"))[0].id


def test_a_rule_that_was_edited_is_refused() -> None:
    text = write_rules(map(canonical, read_rules(MERGE)))
    assert "start=0" in text
    with pytest.raises(GraphTextError, match="changed after it was proved"):
        read_rules(text.replace("where B-2 >= 0", "where B-1 >= 0").replace("where D-2 >= 0", "where D-1 >= 0"))


def test_a_rule_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(GraphTextError, match="nested too deeply; give names"):
        read_rules(f"rule x: float[N] source {'relu(' * 3000}x{')' * 3000} target relu(x)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rule x: float[N] source relu(x) target relu(x){", "expected name"),
        ("rule x: float[N], y: float[N] source relu(x) target relu(y)", "variable y, which the source does not bind"),
        (
            "rule x: float[N] source relu(x) target x where Q - 2 >= 0",
            "a precondition is about Q, which the",
        ),
        ("rule x: float[M,..B] source relu(x) target x", r"line 1, column 22: an axis group must come first"),
        ("rule x: float[N] source relu(x) target slice(x){axis=-1, start=0, stop=M}", "differ in type"),
        ("rule x: float[N] source relu(x) target relu(x), relu(x)", "differ in type"),
        ("rule x: float[N] source x target relu(x)", "must compute something"),
        ("rule x: float[N] source relu(x) target pad(slice(x){axis=-1, start=0, stop=N-S}){widths=[[0,S]]}", "uses S"),
        ("rule x: float[N] source relu(x) target relu(x) numerics ROUGH", "no numerics class is called ROUGH"),
    ],
)
def test_rules_that_are_not_well_formed_are_refused(text: str, message: str) -> None:
    with pytest.raises(GraphTextError, match=message):
        read_rules(text)


def test_the_reverse_of_a_rule_that_forgets_a_variable_does_not_exist() -> None:
    rule = read_rules("rule x: float[N], y: float[N] source sub(add(x, y), y) target x")[0]
    with pytest.raises(Exception, match="must compute something"):
        _ = rule.reversed


def test_the_sign_of_a_variable_is_part_of_a_rule() -> None:
    texts = [f"rule a: {sign} float[..A] source exp(log(a)) target a" for sign in ("", "nonnegative", "positive")]
    rules = [read_rules(text)[0] for text in texts]
    assert [sign.label for rule in rules for sign in rule.signs.values()] == ["nonnegative", "positive"]
    assert len({rule.id for rule in rules}) == 3
    assert read_rules(write_rules(rules)) == rules
    assert canonical(rules[2]) == rules[2]
    assert rules[2].substitute({"N": 3}).signs == rules[2].signs
    assert with_signs(rules[2], {"a": Sign.ANY}) == rules[0]


def test_a_positive_variable_may_be_called_positive() -> None:
    (rule,) = read_rules("rule positive: positive float[N] source relu(positive) target positive")
    assert read_rules(write_rules([rule])) == [rule]
