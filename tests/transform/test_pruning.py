"""Conditions of constants: numba decides some before it finds types, and types follow from that.

In each program the branches assign an integer or a float; 2 to the power -1 is 0 for integers.
"""

import collections
import enum
import types

import numpy as np
import pytest
from check import check, module
from numba import typeof
from numba.core.types import unliteral
from random_programs.conditions import Conditions
from random_programs.interpret import result_type

import tapegrad as tg
from tapegrad.transform.errors import TransformError
from tapegrad.transform.frontend import conditions
from tapegrad.transform.frontend.branch_decisions import jumps_of, numbered
from tapegrad.transform.frontend.inference import infer
from tapegrad.transform.frontend.normalize import normalize
from tapegrad.transform.frontend.pruning import prune
from tapegrad.transform.frontend.source import Source
from tapegrad.transform.frontend.undecided import all_undecided

ONE, PAIR = 1, (1, 2)
POINT = collections.namedtuple("Point", "a b")(1, 2)
SETTINGS = types.ModuleType("settings")
SETTINGS.ONE = 1


class Level(enum.IntEnum):
    LOW = 1


OUTSIDE = {"ONE": ONE, "PAIR": PAIR, "POINT": POINT, "SETTINGS": SETTINGS, "Level": Level}

CONDITIONS = {
    "a literal": ("", "2**3 > 0"),
    "a global": ("", "ONE > 0"),
    "a sum with a global": ("", "ONE + 1 > 0"),
    "minus a global": ("", "-ONE < 0"),
    "an item": ("", "PAIR[0] > 0"),
    "a field": ("", "POINT.a > 0"),
    "an attribute": ("", "SETTINGS.ONE > 0"),
    "NumPy's constant": ("", "np.pi > 3"),
    "a member": ("", "Level.LOW > 0"),
    "a variable": ("u = 0", "u >= -0.2"),
    "a power of a variable": ("u = 0", "u**3 >= -0.2"),
    "a power in a variable": ("u = 0; t = u**3", "t >= -0.2"),
    "a copy of a variable": ("u = 1; v = u", "not (v > 2)"),
    "minus a variable": ("u = -1", "-u > 0"),
    "a variable that changes": ("u = 1; u += 1", "u > 0"),
    "one that a tuple is assigned to": ("u, v = 1, 2", "u < v"),
    "a chain": ("", "0 < ONE < 3"),
    "two conditions": ("u = 1; v = 0 if u else 7", "v < 2 and u > 0"),
    "a flag": ("flag = True", "flag"),
    "one that is not taken": ("u = 3", "u < 2"),
    "a number and a condition": ("", "ONE and 1"),
    "a default": ("", "k > 0"),
    "no default": ("", "k is None"),
}


def program(setting, condition, form):
    body = f"    r = 0 if {condition} else q[0]\n"
    if form == "if":
        body = f"    if {condition}:\n        r = 0\n    else:\n        r = q[0]\n"
    if form == "helper":
        body = "    r = chosen(q, k)\n"
    helper = f"    {setting or 'pass'}\n    return 0 if {condition} else q[0]\n"
    text = (
        f"import numpy as np, tapegrad as tg\n\n@tg.njit\ndef chosen(q, k):\n{helper}\n"
        f"@tg.njit\ndef f(q, k=1):\n    {setting or 'pass'}\n{body}"
        "    setting = 0\n    flag = False\n    u = 5\n"
        "    return 2 ** (r - 1) * q[1] * q[1]\n"
    )
    return module(text, **OUTSIDE)


@pytest.mark.parametrize("form", ["if", "expression", "helper"])
@pytest.mark.parametrize("name", CONDITIONS)
def test_types_that_follow(name, form):
    f, q = program(*CONDITIONS[name], form), np.array([1.5, 0.7])
    value = f(q, 1)
    assert tg.value_and_grad(f)(q, 1)[0] == value
    check(f, q, 1, argnums=(0,), compiled=True, jvp=False)


PROGRAMS = {
    "and with a constant": "if k > 0 and D: r = q[0]",
    "or with a constant": "if k > 9 or G: r = 0\nelse: r = q[0]",
    "both kinds in a line": "if k > 0: r = 0 if (v and 1) else q[0]",
    "not, in a line with both kinds": "if k > 0: r = 0 if not (v > 2) else q[0]",
    "one of two expressions": "r = q[0] if k > 0 and D else 0",
    "not and": "r = 0 if not (k > 0 and D) else q[0]",
    "a choice in a condition": "r = q[0] if (D if k > 0 else D) else 0",
    "a choice of constants": "if True if k > 0 else True: r = 0\nelse: r = q[0]",
    "a while that is never entered": "n = 0\nwhile n < 0:\n    r = q[0]\n    n += 1",
    "a while with a constant": "while k > 5 and D:\n    r = q[0]",
    "a while with one that changes": "n = 0\nwhile n < 2 and k < 7:\n    r += n\n    n += 1",
    "break": "n = 0\nwhile True:\n    if n > 3 or G: break\n    r = q[0]\n    n += 1",
    "break at once": "while True:\n    r = 0\n    break",
    "a lambda": "g = lambda: 0 if v else q[0]\nr = g()",
    "a lambda that numba does not decide": "g = lambda: 0 if v**3 > 0 else q[0]\nr = g()",
    "an inner function": "def g(t, m):\n    if m > 0: return 0\n    else: return t\nr = g(q[0], 1)",
    "a value of and": "w = 0\nr = w and q[0]",
    "a value of or": "r = v or q[0]",
    "isinstance": "r = 0 if isinstance(k, int) else q[0]",
    "isinstance of another type": "if isinstance(k, float) or D: r = q[0]",
    "dimensions": "r = 0 if q.ndim == 1 else q[0]",
    "None": "z = None\nif z is not None and k > 0: r = q[0]",
    "not None": "z = None\nr = q[0] if not (z is None) else 0",
    "in and not in": "r = 0\nif 3 not in (1, 2) and D: r = q[0]",
    "a condition that calls": "if helper(q) > 0 and D: r = q[0]",
    "an assertion": "assert v > 0\nr = 0 if v else q[0]",
    "return before": "r = q[0]\nif k > 3: r = 1\nelif k >= 0: r = 0\nelse: return q[1]",
    "return of what is undecided": "if k > 0 and D: return q[0]",
    "undecided": "if -G < 0: r = 0\nelse: r = q[0]",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name):
    body = "".join(f"    {line}\n" for line in PROGRAMS[name].split("\n"))
    text = (
        "import numpy as np, tapegrad as tg\n\nG, D = 1, 0\n\n"
        "@tg.njit\ndef helper(q):\n    return q[0]\n\n"
        f"@tg.njit\ndef f(q, k):\n    v = 1\n    r = 0\n{body}"
        "    return 2 ** (r - 1) * q[1] * q[1]\n"
    )
    f, q = module(text), np.array([1.5, 0.7])
    for k in (0, 1):
        assert tg.value_and_grad(f)(q, k)[0] == f(q, k)
        check(f, q, k, argnums=(0,), compiled=True)


UNCERTAIN = {
    "a loop that is entered": "n = 0\nr = 0.5\nwhile n < 2:\n    r = 0\n    n += 1",
    "an operand that jumps elsewhere": "w = 0\nr = (k > 0 and w) and q[0]",
    "an inner function with several calls": (
        "def g(t, m):\n    if m: return 0\n    return t\nr = g(q[0], 0) + g(q[0], 1)"
    ),
}


@pytest.mark.parametrize("name", UNCERTAIN)
def test_what_is_uncertain_is_refused_if_types_differ(name):
    body = "".join(f"    {line}\n" for line in UNCERTAIN[name].split("\n"))
    text = (
        f"import tapegrad as tg\n\n@tg.njit\ndef f(q, k):\n{body}    return 2 ** (r - 1) * q[1]\n"
    )
    with pytest.raises(TransformError, match="give it one type"):
        tg.value_and_grad(module(text))(np.array([1.5, 0.7]), 1)
    same = module(text.replace("0.5", "5").replace("q[0]", "1"))
    check(same, np.array([1.5, 0.7]), 1, argnums=(0,), compiled=True)


@pytest.mark.parametrize("seed", range(60))
def test_types_of_random_conditions(seed):
    """The normal form has the type that numba finds for the function as it is."""
    function = module(Conditions(seed).text()).__wrapped__
    kinds = (typeof(np.ones(2)), typeof(1))
    source = Source(function)
    prune(source, kinds)
    _, _, found = normalize(source, lambda form: infer(form, kinds))
    assert unliteral(found) == result_type(function, kinds)


UNDECIDED = {
    "an element": "if q[0] > 1: r = q[1]",
    "an element and a constant": "if q[0] > G: r = q[1]",
    "an argument": "if k > G: r = q[1]",
    "what is computed from them": "s = q[k] * 2 + G\nif -s < 0: r = q[1]",
    "a comparison in a variable": "flag = k > 3\nif not flag: r = q[1]",
    "a function of NumPy": "m = np.isfinite(q[0])\nr = q[1] if m else 0.0",
    "an extent": "m, n = q.shape[0], 3\nif n < m: r = q[1]",
    "an unpacked shape": "(n,) = q.shape\nif n < 3: r = q[1]",
    "a loop": "for i in range(3):\n    if i > 1: r += q[i]",
    "a loop with a condition": "n = k\nwhile n < 3:\n    n += 1",
}
MAYBE = {
    "a constant": "if G > 0: r = q[1]",
    "one of two": "n = k\nn = 1\nif n > G: r = q[1]",
    "a variable that depends on itself": "n = 0\nn = n + 1\nif n > G: r = q[1]",
    "a loop over constants": "for i in (1, 2):\n    if i > G: r = q[1]",
    "dimensions": "if q.ndim > 0: r = q[1]",
    "a type": "if isinstance(k, int): r = q[1]",
    "another function": "if helper(1) > 0: r = q[1]",
    "a chain": "if 0 < G < k: r = q[1]",
    "None": "if z is None: r = q[1]",
    "None that is replaced": "if z is None: z = q[1]\nif z > 1: r = q[1]",
    "an inner function": "g = lambda: 1\nif g() > 0: r = q[1]",
}


def decisions(body):
    """Return whether it is known that nothing is decided, and what numba decides."""
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    text = (
        "import numpy as np, tapegrad as tg\n\nG = 1\n\n@tg.njit\ndef helper(n):\n    return n\n\n"
        f"@tg.njit\ndef f(q, k, z):\n    r = 0.0\n{lines}    return r\n"
    )
    source, kinds = Source(module(text).__wrapped__), (typeof(np.ones(3)), typeof(1), typeof(None))
    found = conditions.Conditions()
    for statement in source.tree.body:
        found.visit(statement)
    is_known = all_undecided(source, found.found, kinds)
    twin, _ = numbered(source, found.found)
    return is_known, {d for jump in jumps_of(twin, kinds).values() for d in jump.decisions}


@pytest.mark.parametrize("name", UNDECIDED)
def test_conditions_that_numba_is_not_asked_about(name):
    assert decisions(UNDECIDED[name]) == (True, {conditions.UNDECIDED})


@pytest.mark.parametrize("name", MAYBE)
def test_conditions_that_numba_is_asked_about(name):
    assert not decisions(MAYBE[name])[0]


def test_jumps_are_those_of_the_function():
    """The copy that numba is asked about has the same code, whatever lines its conditions have."""
    for seed in range(60):
        source = Source(module(Conditions(seed).text()).__wrapped__)
        found = conditions.Conditions()
        for statement in source.tree.body:
            found.visit(statement)
        twin, _ = numbered(source, found.found)
        assert twin.__code__.co_code == source.function.__code__.co_code


def test_what_is_returned():
    """A result of another type than that of the call is no number of the wrong type."""
    text = """
import numpy as np, tapegrad as tg

@tg.njit
def chosen(p, q):
    u = 0
    return u if u**3 >= -0.2 else q[0]

@tg.njit
def f(a, b, n):
    a[n % 3] -= chosen(b, b[2::-1])
    return np.sum(a) * b[0]
"""
    check(module(text), np.array([0.1, -0.1, 1.0]), np.array([0.2, -0.6, 0.1]), 4, argnums=(0, 1))
