"""Values that have nothing but a name in common get names of their own."""

import ast
import inspect
import random
import textwrap

import numba
import pytest
from optimized import facts_of, function_of

from tapegrad.transform.optimize.webs import drop_copies, split_names

pytestmark = pytest.mark.texts


def _split(function):
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    tree.decorator_list = []
    return _split_text(ast.unparse(tree))


def _split_text(text, numbers=None):
    """The function of a text for passes, with split names; all of its names are of numbers."""
    names = numbers or {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
    found = function_of(text, facts_of(dict.fromkeys(names, numba.float64)))
    assert split_names(found)
    return found


def _compiled(tree):
    namespace = {}
    exec(ast.unparse(ast.fix_missing_locations(tree)), namespace)
    return namespace[tree.name]


def _names(tree):
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - {"range", "abs", "max"}


def _twice(x):
    y = x + 1.0
    z = y * 2.0
    y = z * z
    return y + z


def _sum(x):
    total = 0.0
    for k in range(4):
        y = x * k
        total = total + y
    for k in range(3):
        y = x - k
        total += y
    return total


def _branch(x):
    y = x
    if x > 0.0:
        y = y * 2.0
    elif x < -1.0:
        y = 3.0
        x = y + x
    return y + x


def _last_of_a_loop(x):
    y = 0.0
    k = -1
    for k in range(3):
        if k > x:
            y = x * k
    return y + k


def _read_before_it_is_set(x):
    before = x
    total = 0.0
    for k in range(4):
        total += before
        before = total * k
    before = 1.0
    return total * before


def _loops_that_end_early(x):
    total = x
    step = 1.0
    while True:
        step = step * 0.5
        total = total + step
        if step < 0.1:
            break
    step = total
    return step + x


FUNCTIONS = [
    *(_twice, _sum, _branch, _last_of_a_loop, _read_before_it_is_set, _loops_that_end_early)
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_function_computes_the_same(function):
    made = _compiled(_split(function).tree)
    for x in (-2.0, -0.5, 0.0, 0.7, 1.0, 5.0):
        assert made(x) == function(x)


def test_assignments_that_no_use_has_in_common():
    assert _names(_split(_twice).tree) == {"x", "y", "y_1", "z"}
    assert _names(_split(_sum).tree) == {"x", "y", "y_1", "k", "k_1", "total"}


def test_assignments_that_a_use_has_in_common():
    assert _names(_split(_branch).tree) == {"x", "y"}
    assert _names(_split(_last_of_a_loop).tree) == {"x", "y", "k"}


def _copies(x):
    y = x
    z = y + 1.0
    for k in range(3):
        before = z
        z = before * y
        step = k
        w = z + step
    last = w
    return last + y


def _the_largest(x):
    for k in range(4):
        y = x * (k - 1.0) * (k - 2.5)
        if k == 0 or y > top:  # noqa: F821 (it is set in the first iteration)
            top = y
    return top


def test_copies():
    for function in (*FUNCTIONS, _copies, _the_largest):
        split = _split(function)
        drop_copies(split)
        made = _compiled(split.tree)
        for x in (-2.0, 0.0, 0.7, 5.0):
            assert made(x) == function(x)
    split = _split(_copies)
    drop_copies(split)
    assert not {"y", "step", "last"} & _names(split.tree)


def _random_body(draw, depth, indent):
    pad = "    " * indent
    lines = []
    for _ in range(draw.randint(1, 4)):
        kinds = ["set", "copy", "copy", "add", *(["if", "for", "while"] if depth else [])]
        kind = draw.choice(kinds)
        one, two, other = (draw.choice("abcd") for _ in range(3))
        if kind == "set":
            lines.append(f"{pad}{one} = {two} * 0.5 + {other} - {draw.randint(0, 3)}")
        elif kind == "copy":
            lines.append(f"{pad}{one} = {two}")
        elif kind == "add":
            lines.append(f"{pad}{one} += {two}")
        elif kind == "if":
            lines.append(f"{pad}if {one} > {two}:")
            lines += _random_body(draw, depth - 1, indent + 1)
            if draw.random() < 0.5:
                lines += [f"{pad}else:", *_random_body(draw, depth - 1, indent + 1)]
        elif kind == "for":
            lines.append(f"{pad}for {draw.choice('ijab')} in range({draw.randint(0, 3)}):")
            lines += _random_body(draw, depth - 1, indent + 1)
            if draw.random() < 0.3:
                lines += [f"{pad}    if {one} < {two}:", f"{pad}        break"]
        else:
            lines += [f"{pad}n = 0", f"{pad}while n < {draw.randint(0, 3)}:", f"{pad}    n += 1"]
            lines += _random_body(draw, 0, indent + 1)
    return lines


@pytest.mark.parametrize("seed", range(400))
def test_random_functions_compute_the_same(seed):
    draw = random.Random(seed)
    lines = ["def function(a, b):", "    c = d = a - b", *_random_body(draw, 3, 1)]
    text = "\n".join([*lines, "    return a, b, c, d"])
    before = _compiled(ast.parse(text).body[0])
    found = _split_text(text)
    split = _compiled(found.tree)
    drop_copies(found)
    short = _compiled(found.tree)
    for args in ((0.0, 0.0), (1.5, -2.0), (-3.0, 0.25)):
        assert before(*args) == split(*args) == short(*args)


def test_additions_to_numbers_give_them_new_names():
    text = "def function(x, y):\n    s = x\n    s += y\n    s *= s\n    y += s\n    return s, y"
    body = _split_text(text, {"s"}).tree.body
    assert [ast.unparse(node) for node in body] == [
        "s = x",
        "s_1 = s + y",
        "s_2 = s_1 * s_1",
        "y += s_2",  # which may change an array
        "return (s_2, y)",
    ]
