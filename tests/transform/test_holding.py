"""Where arrays of generated functions may go: what is said of them beside what Python does."""

import ast
import itertools
import random

import numba
import numpy as np
import pytest
from numba import types

from tapegrad.transform.generated import Facts
from tapegrad.transform.ir import FunctionIR, Let, name
from tapegrad.transform.sharing.flow import Flow, flow_of
from tapegrad.transform.sharing.holders import Holding

ARRAYS = ("a", "b", "u", "v", "w")  # two parameters, three names that are given arrays
MATRIX = types.Array(types.float64, 2, "C")
KINDS = {
    **dict.fromkeys([*ARRAYS, "x", "y", "z", "whole"], MATRIX),
    "pair": types.UniTuple(MATRIX, 2),
    "many": types.List(MATRIX, reflected=True),
    "flag": types.boolean,
    "k": types.int64,
}
HELPERS = """
def same(x, y):
    return x

def both(x, y):
    z = x + y
    return z, y[:1]

def summed(x, y):
    return x @ y

def elsewhere(x, y):
    return whole

def put(many, x):
    many.append(x)
    return x + 1.0

def last(many):
    return many[-1]

def again(x, k):
    if k > 0:
        x = again(x.T, k - 1)
    return x
"""
VALUES = (
    *("np.zeros((2, 2))", "np.ones_like({0})", "{0}.copy()", "np.sin({0})", "np.dot({0}, {1})"),
    *("{0} + {1}", "{0} @ {1}", "-{0}", "2.0 * {0}[0, 0] + {1}"),
    *("{0}", "{0}[:1]", "{0}.T", "{0}.reshape(-1, 1)", "np.ravel({0}).reshape(2, 2)"),
    *("np.transpose({0})", "np.atleast_2d({0})", "{0} if flag else {1}", "np.asarray({0})"),
    *("whole", "whole[:1]", "unknown({0})", "pair[0]", "many[-1]", "(pair + ({0}, {1}))[0]"),
    *("same({0}, {1})", "both({0}, {1})[1]", "summed({0}, {1})", "elsewhere({0}, {1})"),
    *("put(many, {0})", "last(many)", "again({0}, 2)", "((pair + pair) + pair)[5]"),
    *("same(many[0], {0})", "[{0}, {1}][0]", "unknown(many[0])"),
)
STATEMENTS = (
    *("{2} = {value}", "{2} = {value}", "{2} = {value}"),
    *("{2}, {3} = {3}, {2}", "{2}, {3} = both({0}, {1})", "{2}, {3} = pair", "{2} = {3} = {value}"),
    *("pair = ({0}, {1})", "many.append({0})", "many[0] = {0}", "put(many, {0})"),
    *("many = [{0}]", "{2} += 1.0", "{2}[0, 0] = {0}[0, 0]"),
)
BLOCKS = (
    "if flag:\n{body}",
    "for k in range(2):\n{body}",
    "for {2} in ({0}, {1}):\n{body}",
    "for {2} in many[:1]:\n{body}",
)


def body_of(draw, depth=1, indent="    "):
    lines = []
    for _ in range(draw.randint(2, 5)):
        names = [draw.choice(ARRAYS) for _ in range(4)]
        value = draw.choice(VALUES).format(*names)
        if depth and draw.random() < 0.25:
            body = body_of(draw, depth - 1, "    ")
            text = draw.choice(BLOCKS).format(*names, body=body)
        else:
            text = draw.choice(STATEMENTS).format(*names, value=value)
        lines += [indent + line for line in text.splitlines()]
    return "\n".join(lines)


def run(text, flag):
    """Return the arrays of the names of a function when it ends, its arguments and its list."""
    whole = np.full((2, 2), 3.0)

    def unknown(x):  # numba's functions cannot keep arrays
        return x if flag else whole[:1]

    scope = {"np": np, "whole": whole, "unknown": unknown}
    exec(HELPERS + text.replace("return u", "return locals()"), scope)
    a, b, item = np.arange(12.0).reshape(3, 2, 2)
    many = [np.eye(2), np.eye(2)]
    found = scope["f"](a, b, (item, item.T), many, flag)
    return {name: found[name] for name in ARRAYS} | {"whole": whole}, [a, b], many


def flow_in(text):
    functions = {node.name: node for node in ast.parse(HELPERS + text).body}
    facts = Facts(KINDS)
    known = {}

    def holding_of(name):
        if name not in functions:
            return None
        if name not in known:
            everything = frozenset(range(len(functions[name].args.args)))
            known[name] = Holding(everything, (), shows_others=True)
            known[name] = Flow(functions[name], facts, holding_of).holding()
        return known[name]

    return Flow(functions["f"], facts, holding_of)


@pytest.mark.parametrize("seed", range(400))
def test_what_is_said_holds_in_python(seed):
    """Of random functions, and of what they return or put into lists."""
    draw = random.Random(seed)
    start = "    u = a + b\n    v = a.copy()\n    w = np.zeros((2, 2))\n"
    text = f"def f(a, b, pair, many, flag):\n{start}{body_of(draw)}\n    return u\n"
    flow = flow_in(text)
    holding = flow.holding()
    for flag in (True, False):
        try:
            arrays, arguments, many = run(text, flag)
        except ValueError:  # shapes that do not fit
            continue
        for one, other in itertools.combinations(arrays, 2):
            if np.shares_memory(arrays[one], arrays[other]):
                assert flow.may_share(one, other), (text, one, other)
        for position, argument in enumerate(arguments):
            if np.shares_memory(argument, arrays["u"]):
                assert position in holding.results[0] | holding.kept, (text, position)
            if any(np.shares_memory(argument, item) for item in many):
                assert position in holding.kept, (text, position)


@pytest.mark.parametrize(
    "value",
    [
        *("np.zeros((2, 2))", "a.copy()", "a + b", "a @ b", "np.dot(a, b)", "summed(a, b)"),
        *("put(many, a)", "runtime.owned_row(tape, top, k)", "arrays.cholesky(np.ones(2))"),
    ],
)
def test_new_arrays_share_with_nothing(value):
    flow = flow_in(f"def f(a, b, many):\n    u = {value}\n    v = a[:1]\n    return v\n")
    for other in ("a", "b", "v", "whole"):
        assert not flow.may_share("u", other)
    assert flow.may_share("v", "b"), "arguments may be the same"
    assert not flow_in(f"def f(a, b, many):\n    u = {value}\n    v = a + 1\n").may_share("u", "v")


@pytest.mark.parametrize(
    "value",
    [
        *("whole", "unknown(u)", "elsewhere(a, b)", "last(many)", "many[0]", "again(a, 1)"),
        *("runtime.pop_array(tape, top, k)", "a"),
    ],
)
def test_arrays_from_elsewhere_may_be_arguments(value):
    flow = flow_in(f"def f(a, b, many):\n    u = np.zeros(3)\n    v = {value}\n    return v\n")
    assert flow.may_share("v", "b")
    assert flow.may_share("u", "v") == ("(u)" in value)


def test_functions_of_the_normal_form_are_what_their_names_stand_for():
    """One of the user may be called like one of Python's, and NumPy by another name."""
    values = {"k": "xp.ones(2)", "new": "total(k)", "same": "sum(k)"}
    body = [Let(target, ast.parse(text, mode="eval").body) for target, text in values.items()]
    for let in body:
        let.expr.func = name(ast.unparse(let.expr.func))
    statics = {"xp.ones": np.ones, "total": np.sum, "sum": numba.njit(lambda x: x)}
    kinds = dict.fromkeys(["k", "new", "same", "x"], MATRIX)
    flow = flow_of(FunctionIR("f", ["x"], body, name("k"), None, statics, kinds))
    assert flow.are_apart("k", ["x", "new"])
    assert not flow.are_apart("k", ["same"])
    assert not flow.are_apart("x", ["new"]), "the function did not make it"


def test_kept_arrays_may_come_back():
    flow = flow_in("def f(many):\n    u = np.zeros(3)\n    many.append(u)\n    v = many.pop()\n")
    assert flow.may_share("u", "v")
