"""Copies of generated code are what Python's parser makes of its text; templates."""

import ast
import math

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.transform import generation
from tapegrad.transform.syntax import key_of
from tapegrad.transform.trees import complete, quoted, quoted_block

pytestmark = pytest.mark.texts

CODE = """
def f(x, n, *, k=2):
    a, (b, *c) = x[0], (n, [1, 2])
    a[1:n, ::-1, None] += -b ** 2 if not c else {**x}
    x.shape, z = n, (y := 3)
    for i, (j, r) in enumerate(x):
        if i < j <= r and (i or not j):
            continue
    else:
        del a[0]
    while True:
        break
    with x as y, z:
        pass
    try:
        raise ValueError(f"{x!r} {n:>{k}}") from None
    except (KeyError, TypeError) as error:
        assert error, "text"
    return [v * w for v in x if v for w in v], lambda q: q @ x
"""


def nodes_of(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.AST) and node._fields]


def test_a_copy_is_the_parsed_text():
    (tree,) = ast.parse(CODE).body
    made = complete(tree)
    assert ast.dump(made) == ast.dump(tree)
    assert not {*map(id, nodes_of(made))} & {*map(id, nodes_of(tree))}


def test_nodes_in_two_places_become_two():
    shared = ast.Name("x", ast.Load())
    made = complete(ast.BinOp(shared, ast.Add(), shared))
    assert made.left is not made.right


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (ast.Name("np.linalg.inv", ast.Load()), "np.linalg.inv"),
        (ast.BinOp(ast.Constant(-2.0), ast.Pow(), ast.Constant(2)), "(-2.0) ** 2"),
        (ast.Constant(-0.0), "-0.0"),
        (ast.Constant(-math.inf), "-np.inf"),
        (ast.Constant(math.nan), "np.nan"),
        (ast.Constant(-1j), "-1j"),
        (ast.Constant(2 - 3j), "2 - 3j"),
        (ast.Constant(True), "True"),
        (ast.Constant("-1"), "'-1'"),
    ],
)
def test_names_and_numbers(node, text):
    made = complete(node)
    assert ast.dump(made) == ast.dump(ast.parse(ast.unparse(made), mode="eval").body)
    assert eval(ast.unparse(made), {"np": np}) is not None
    if not isinstance(node, ast.Constant) or not isinstance(node.value, complex):
        assert ast.dump(made) == ast.dump(ast.parse(text, mode="eval").body)


def test_targets():
    node = ast.Name("x", ast.Load())
    target = ast.Tuple([node, ast.Subscript(node, node, ast.Load())], ast.Load())
    made = complete(ast.Assign([target], node))
    assert ast.dump(made) == ast.dump(ast.parse("x, x[x] = x").body[0])


def test_what_is_no_identifier_is_no_name():
    with pytest.raises(AssertionError, match="x\\[0\\]"):
        complete(ast.Name("x[0]", ast.Load()))


# -- templates ------------------------------------------------------------------------------------


def test_parts_of_an_expression():
    part = ast.parse("low + 1", mode="eval").body
    made = quoted("f(low, n, k, step.size)", low=part, n="np.pi", k=-3, step="high")
    assert ast.unparse(made) == "f(low + 1, np.pi, -3, high.size)"


def test_names_in_parts_stay():
    made = quoted("low + high", low="high", high="low")
    assert ast.unparse(made) == "high + low"
    made = quoted_block(
        "for k in range(n):\n    body", k="i", n="k", body=ast.parse("n = k\nbody").body
    )
    assert ast.unparse(made[0]) == "for i in range(k):\n    n = k\n    body"


def test_lists():
    made = quoted_block(
        "before\nx = f(*arguments, *more)\nreturn (first, *names)\nafter",
        before=[],
        arguments=["a", ast.Constant(1)],
        more="others",
        first="b",
        names=[],
        after=ast.parse("pass\npass").body,
    )
    assert [ast.unparse(node) for node in made] == [
        "x = f(a, 1, *others)", "return (b,)", "pass", "pass",
    ]  # fmt: skip


def test_a_template_is_used_again():
    for name in ("x", "y"):
        (made,) = quoted_block("target = 0", target=name)
        assert ast.dump(made) == ast.dump(ast.parse(f"{name} = 0").body[0])


@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        ("x[i, 0]", "x[(i, 0)]", True),
        ("x + y", "x + y", True),
        ("x + y", "y + x", False),
        ("1", "1.0", False),
        ("1", "True", False),
        ("f(x)", "f(x, x)", False),
        ("f(a=1)", "f(b=1)", False),
        ("x.y", "x.z", False),
    ],
)
def test_keys(one, other, are_equal):
    keys = [key_of(ast.parse(text, mode="eval").body) for text in (one, other)]
    assert (keys[0] == keys[1]) == are_equal
    assert hash(keys[0]) is not None


# -- whole modules --------------------------------------------------------------------------------


def loops(x, a):
    total = 0.0
    for i in range(1, x.size):
        y = np.zeros(3)
        for j in range(3):
            y[j] = a * x[i] - x[i - 1] if x[i] > -2.0 else -1e-3
        total += np.sum(y) * np.exp(-total)
    return total


def matrices(x, a):
    m = np.outer(x, x) + 1j * a
    return (m @ m).real[0, 1] + a


def parallel(x, a):
    total = 0.0
    for i in numba.prange(x.size):
        t = x[i] * a
        total += t * np.log(1.0 + t * t)
    return total


@pytest.mark.parametrize("options", [{}, {"parallel": True}])
@pytest.mark.parametrize("function", [loops, matrices, parallel])
def test_functions_of_modules(function, options, monkeypatch, tmp_path):
    seen = []

    def note(*args):
        found = versions_of(*args)
        seen.extend([*found.verified, *found.faster])
        return found

    versions_of = generation.versions_of
    monkeypatch.setattr(generation, "versions_of", note)
    monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(tmp_path))
    kinds = (numba.float64[::1], numba.float64)
    compiled = tg.njit(function, **options)
    tg.value_and_grad(compiled, (0, 1)).source(kinds)
    tg.jvp(compiled).source((*kinds, kinds[0]))
    assert len(seen) > 2
    for generated in seen:
        (parsed,) = ast.parse(generated.text).body
        assert ast.dump(generated.tree) == ast.dump(parsed)
