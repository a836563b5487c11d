"""Mutants of generated code that compute something else are refused."""

import ast
import random

import pytest
from mutants import CHANGED, WRONG, Judgement, fixed_subjects, random_subjects

from tapegrad.transform.errors import InternalError

pytestmark = pytest.mark.texts


def test_mutants_of_fixed_programs_are_refused():
    judgement, draw = Judgement(every=8), random.Random(0)
    for subject in fixed_subjects():
        judgement.judge(subject, draw, 16)
    check(judgement, 60)


def test_mutants_of_random_programs_are_refused():
    judgement, draw = Judgement(every=8), random.Random(0)
    for subject in random_subjects(range(900, 908)):
        judgement.judge(subject, draw, 12)
    check(judgement, 30)


@pytest.mark.parametrize("mode", ["reverse", "forward", "second"])
def test_no_purpose_hides_what_is_wrong(mode):
    """What the generator says of functions and names is checked, and not only believed."""
    judgement, draw = Judgement(every=1000, purposes=8), random.Random(5)
    for subject in fixed_subjects(mode=mode):
        judgement.judge(subject, draw, 6)
    assert judgement.tried > 50
    assert not judgement.hidden


@pytest.mark.parametrize("name", ["views and stores", "fused loop", "matrices"])
def test_other_operators_on_cotangents_are_refused(name):
    (subject,) = fixed_subjects((name,))
    tree, count = ast.parse(subject.text), 0
    for node in ast.walk(tree):
        match node:
            case ast.AugAssign(target, ast.Add()) if "_bar" in ast.unparse(target):
                for operator in ast.Div, ast.FloorDiv, ast.Mod, ast.Mult, ast.Pow, ast.MatMult:
                    node.op = operator()
                    with pytest.raises(InternalError):
                        subject.verify(ast.unparse(tree))
                    count += 1
                node.op = ast.Add()
    subject.verify(ast.unparse(tree))
    assert count >= 6


def check(judgement, least):
    """At least 99 of 100; some mutants compute the same and are accepted."""
    for outcomes in (WRONG, CHANGED):
        rate, _ = judgement.rate(*outcomes)
        assert rate >= 0.99, judgement.missed
    _, changed = judgement.rate(*CHANGED)
    assert changed >= least
    assert judgement.count(["equal"], lambda is_refused, _: not is_refused) > 0
    # some are noticed by runs for random arguments, too
    assert judgement.count(WRONG, lambda _, differs: differs) > 0
