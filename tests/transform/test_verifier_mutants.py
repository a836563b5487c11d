"""Mutants of generated code that compute something else are refused."""

import random

import pytest
from mutants import CHANGED, WRONG, Judgement, fixed_subjects, random_subjects

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
