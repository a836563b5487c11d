"""Functions that run are compared with those that were verified."""

import ast
import textwrap
import warnings

import numba
import numpy as np
import pytest
from numba import types

import tapegrad as tg
from tapegrad.transform import generation
from tapegrad.transform.codegen import store
from tapegrad.transform.equivalence import comparison
from tapegrad.transform.equivalence.meanings import defined
from tapegrad.transform.errors import SlowerCodeWarning
from tapegrad.transform.frontend.source import MISSING
from tapegrad.transform.generated import parsed_functions
from tapegrad.transform.optimize import passes
from tests.transform.compared_programs import additions, decays, products, what_is_compared
from tests.transform.random_programs.interpret import types_only

pytestmark = pytest.mark.texts

FLOAT, INT, COMPLEX = types.float64, types.int64, types.complex128
VECTOR, MATRIX = types.Array(FLOAT, 1, "C"), types.Array(FLOAT, 2, "C")


def compared(one, other, *kinds, **named):
    """Compare two functions, given by their parameters and lines."""
    text = function("one", one) + function("other", other)
    return comparison.compare(defined_by(text, named), [("one", "other")], kinds)


def defined_by(text, named):
    """A module whose functions compute with the numbers of a field."""
    namespace = store.namespace(named)
    return defined(parsed_functions(text), lambda name: namespace.get(name, MISSING))


def function(name, lines):
    parameters, body = lines.split(":", 1)
    return f"def {name}({parameters}):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"


EQUAL = {
    "order of terms": (
        [FLOAT, FLOAT],
        "x, y:\n return x * (y + 2.0) + y",
        "x, y:\n return 2.0 * x + (y + y * x)",
    ),
    "powers": (
        [FLOAT],
        "x:\n return x ** 3 + x ** -2 + x ** 2.5",
        "x:\n return x * x * x + 1.0 / (x * x) + x ** 2 * np.sqrt(x)",
    ),
    "fractions": ([FLOAT], "x:\n return x * 0.1 * 10.0", "x:\n return 0.1 * (10.0 * x)"),
    "the same function by another name": (
        [FLOAT],
        "x:\n return math.atan2(x, 2.0) + math.sin(x)",
        "x:\n return np.arctan2(x, 2.0) + vector_math.sin(x)",
    ),
    "a loop and its iterations": (
        [VECTOR],
        """x:
        s = 0.0
        for i in range(2):
            s += x[0] * i
        return s""",
        "x:\n return x[0] * 0 + x[0] * 1",
    ),
    "sums in any order": (
        [VECTOR],
        """x:
        s = 0.0
        for i in range(x.size):
            s += x[i]
        return s""",
        """x:
        s = 0.0
        for i in range(x.size - 1, -1, -1):
            s = runtime.plus(s, x[i])
        return s + 0.0""",
    ),
    "a product and its loops": (
        [MATRIX, MATRIX],
        "x, y:\n return np.dot(x, y)",
        """x, y:
        z = np.zeros((x.shape[0], y.shape[1]))
        for i in range(x.shape[0]):
            for j in range(y.shape[1]):
                for k in range(x.shape[1]):
                    z[i, j] += x[i, k] * y[k, j]
        return z""",
    ),
    "what is kept on a tape and what is computed again": (
        [VECTOR],
        """x:
        tape = runtime.take_tape()
        top = 0
        for i in range(x.size):
            if top + 1 > tape.size:
                tape = runtime.grown(tape, top + 1)
            tape[top] = np.sin(x[i])
            top += 1
        tape, top = runtime.push_elements(tape, top, x, runtime.array_float64_1_C)
        s = 0.0
        y, top = runtime.pop_elements(tape, top, runtime.array_float64_1_C)
        for i in range(x.size - 1, -1, -1):
            top -= 1
            s += tape[top] * y[i]
        runtime.give_tape(tape)
        return s""",
        "x:\n return np.sum(np.sin(x) * x)",
    ),
    "memory that is used again": (
        [VECTOR],
        """x:
        y = np.zeros(x.size)
        for i in range(3):
            z = y + x
            y = z
        return y""",
        """x:
        places = runtime.take_scratch(2)
        y = runtime.scratch(places, 0, x.shape)
        runtime.clear(y)
        for i in range(3):
            z = runtime.scratch(places, 1, x.shape)
            z[:] = y + x
            runtime.swap_scratch(places, 0, 1)
            y = z
        made = y.copy()
        runtime.give_scratch(places, 2)
        return made""",
    ),
    "workers": (
        [VECTOR],
        "x:\n return np.sum(x * x)",
        """x:
        workers = runtime.workers_for(x.size)
        s = 0.0
        for worker in numba.prange(workers):
            blocks = runtime.blocks_of(x.size, workers)
            for half in range(2):
                for number in range(blocks // workers):
                    block = runtime.share_of(number, worker, workers)
                    low, high = runtime.stretch(2 * block + half, 2 * blocks, x.size)
                    for k in range(low, high):
                        s += x[k] ** 2
        return s""",
    ),
    "complex numbers": (
        [COMPLEX, COMPLEX],
        "x, y:\n return x * y / (1.0 + 2.0j)",
        """x, y:
        re = x.real * y.real - x.imag * y.imag
        im = x.real * y.imag + x.imag * y.real
        return complex(re + 2.0 * im, im - 2.0 * re) / 5.0""",
    ),
    "parts of an array of complex numbers": (
        [types.Array(COMPLEX, 1, "C")],
        "x:\n return np.sum(x.real) + np.sum(np.abs(x))",
        "x:\n return np.sum(x).real + np.sum(np.sqrt(x.real ** 2 + x.imag ** 2))",
    ),
    "everything else": (
        [MATRIX, VECTOR],
        "x, y:\n return np.linalg.solve(x, y), np.percentile(y, 30.0)",
        "x, y:\n z = x + 0.0\n return np.linalg.solve(z, 1.0 * y), np.percentile(y, 30.0)",
    ),
    "statements that write to arguments": (
        [VECTOR],
        "x:\n x[0] = x[1]\n return x[0]",
        "x:\n y = x[1]\n x[:1] = y\n return y",
    ),
    "errors that no argument raises": (
        [VECTOR, INT],
        "x, n:\n return x[0]",
        "x, n:\n if n > 1000:\n  raise ValueError('too large')\n return x[0]",
    ),
    "constants as extents": (
        [VECTOR, VECTOR],
        "x, y:\n return x[6] + (np.zeros(12) + y)[0]",
        "x, y:\n return y[0] + x[6]",
    ),
}


@pytest.mark.parametrize(("kinds", "one", "other"), EQUAL.values(), ids=EQUAL)
def test_equal_functions(kinds, one, other):
    found = compared(one, other, *kinds)
    assert found.difference == ""
    assert found.runs >= 1
    assert compared(one, one, *kinds).runs == found.runs


DIFFERENT = {
    "a sign": ([FLOAT, FLOAT], "x, y:\n return x + y", "x, y:\n return x - y"),
    "a factor": ([FLOAT], "x:\n return 2.0 * np.sin(x)", "x:\n return np.sin(2.0 * x)"),
    "a function": ([FLOAT], "x:\n return np.sin(x)", "x:\n return np.cos(x)"),
    "the order of operands": (
        [FLOAT, FLOAT],
        "x, y:\n return np.arctan2(x, y)",
        "x, y:\n return np.arctan2(y, x)",
    ),
    "an index": ([VECTOR], "x:\n return x[0]", "x:\n return x[-1]"),
    "one iteration less": (
        [VECTOR],
        "x:\n s = 0.0\n for i in range(x.size):\n  s += x[i]\n return s",
        "x:\n s = 0.0\n for i in range(x.size - 1):\n  s += x[i]\n return s",
    ),
    "a branch": (
        [FLOAT, FLOAT],
        "x, y:\n return x if x < y else y",
        "x, y:\n return x if y < x else y",
    ),
    "a tie": (
        [FLOAT],
        "x:\n return 1.0 if x >= 0.0 else 0.0",
        "x:\n return 1.0 if x > 0.0 else 0.0",
    ),
    "what an argument holds": (
        [VECTOR],
        "x:\n x[0] = 2.0\n return 1.0",
        "x:\n return 1.0",
    ),
    "a view for a copy": (
        [VECTOR],
        "x:\n y = x.copy()\n y[0] = 1.0\n return y",
        "x:\n y = x\n y[0] = 1.0\n return y",
    ),
    "memory that is not filled": (
        [VECTOR],
        "x:\n y = np.zeros(3)\n y[0] = x[0]\n return y",
        "x:\n y = np.empty(3)\n y[0] = x[0]\n return y",
    ),
    "memory that is not cleared": (
        [VECTOR],
        "x:\n y = np.zeros(x.size)\n y += x\n y[:] = 0.0\n y += x\n return y",
        "x:\n y = np.zeros(x.size)\n y += x\n y += x\n return y",
    ),
    "places on a tape": (
        [FLOAT, FLOAT],
        """x, y:
        tape = runtime.take_tape()
        tape[0], tape[1] = x, y
        return tape[0] + 2.0 * tape[1]""",
        """x, y:
        tape = runtime.take_tape()
        tape[0], tape[1] = x, y
        return tape[1] + 2.0 * tape[0]""",
    ),
    "a shape": ([VECTOR], "x:\n return x", "x:\n return x.reshape(1, -1)"),
    "the number of results": ([FLOAT], "x:\n return x, x", "x:\n return x, x, x"),
    "nothing": ([FLOAT], "x:\n return x", "x:\n return None"),
    "an error": ([VECTOR], "x:\n return x[0]", "x:\n raise ValueError('no')"),
    "the imaginary part": ([COMPLEX], "x:\n return x", "x:\n return np.conj(x)"),
}


@pytest.mark.parametrize(("kinds", "one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_different_functions(kinds, one, other):
    assert "other " in compared(one, other, *kinds).difference
    if "raise" not in other and "empty" not in other:  # these fit no arguments
        assert "other " in compared(other, one, *kinds).difference


UNKNOWN = {
    "an endless loop": ([FLOAT], "x:\n while x != 2.0:\n  pass\n return x", "operations"),
    "a long loop": ([FLOAT], "x:\n for i in range(10 ** 9):\n  x += 1.0\n return x", "operations"),
    "no arguments that fit": ([VECTOR], "x:\n raise ValueError('never')", "ValueError: never"),
    "a type of arguments": ([types.unicode_type], "x:\n return 1.0", "unicode_type"),
    "a function without meaning": ([FLOAT], "x:\n return given(x)", "object"),
    "memory that is not filled": ([VECTOR], "x:\n return np.empty(3)", "not filled"),
}


@pytest.mark.parametrize(("kinds", "lines", "reason"), UNKNOWN.values(), ids=UNKNOWN)
def test_functions_that_are_not_followed(kinds, lines, reason):
    found = compared(lines, lines, *kinds, given=object())
    assert (found.runs, found.difference) == (0, "")
    assert reason in found.reason


def test_named_tuples_and_constants_of_a_module():
    kind = types.Tuple([FLOAT, types.UniTuple(VECTOR, 2)])
    table = np.arange(3.0)

    @numba.njit
    def helper(x, n=2):
        return np.sin(x) * n + 0.5

    one = "t:\n return helper(t[0]) * table[1] + t[1][1][0]"
    other = "t:\n (x, (y, z)) = t\n return z[0] + 2 * np.sin(x) + 0.5"
    assert compared(one, other, kind, helper=helper, table=table).runs
    wrong = other.replace("0.5", "0.25")
    assert compared(one, wrong, kind, helper=helper, table=table).difference


def test_functions_of_users_may_loop_for_ever():
    @numba.njit
    def steps(n, first=1):
        count = first
        while n != 1:  # for ever from 0 on
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        return count

    lines = "x, n:\n return x * steps({})"
    given = lines.format("n"), lines.format("n, first=1")
    assert compared(*given, FLOAT, INT, steps=steps).runs
    endless = lines.format("n - n")
    found = compared(endless, endless, FLOAT, INT, steps=steps)
    assert (found.runs, found.reason) == (0, "it takes too many operations")


def test_nothing_outside_is_changed(capsys):
    table = np.zeros(3)

    @numba.njit
    def told(x):
        print(x)
        return x + np.random.random()

    before = np.random.get_state()[1].copy()
    one = "x:\n print('here')\n table[0] = 1.0\n return x + told(x)"
    found = compared(one, one, FLOAT, told=told, table=table)
    assert "random" in found.reason
    assert capsys.readouterr().out == ""
    assert np.array_equal(before, np.random.get_state()[1])
    assert not table.any()


# -- generated modules -----------------------------------------------------------------------


KINDS = (VECTOR, VECTOR, INT)


def module_of(transform, monkeypatch, folder):
    """Generate the module of a transform; return what was compared, and the result."""
    # so that loops run in blocks, or not, by extents
    (last,) = what_is_compared(transform, KINDS, "compare", monkeypatch, folder, small_blocks=False)
    return last


@pytest.mark.parametrize("function", [decays, products])
def test_faster_versions_are_equal(function, monkeypatch, tmp_path):
    (*_, pairs, _), found = module_of(
        tg.value_and_grad(tg.njit(function), (0, 1)), monkeypatch, tmp_path
    )
    assert pairs
    assert found.difference == ""
    assert found.runs >= 4


@pytest.mark.parametrize("function", [decays, products])
def test_no_addition_is_superfluous(function, monkeypatch, tmp_path):
    """Without any of the additions of a faster version that every path reaches, it differs."""
    (text, lookup, pairs, kinds), _ = module_of(tg.grad(tg.njit(function)), monkeypatch, tmp_path)
    tree = ast.parse(text)
    (entry,) = [f for f in tree.body if f.name == pairs[0][1]]
    missed, count = [], 0
    for block, place in list(additions(entry)):
        left_out, block[place] = block[place], ast.Pass()
        count += 1
        changed = parsed_functions(ast.unparse(ast.fix_missing_locations(tree)))
        if not comparison.compare(defined(changed, lookup), pairs, kinds).difference:
            missed.append(ast.unparse(left_out))
        block[place] = left_out
    assert count >= 4
    assert missed == []


def lose_a_statement(function):
    """A pass with a defect: it removes the first addition to an array."""
    places = [
        (block, place)
        for block, place in additions(function.tree)
        if isinstance(block[place].target, ast.Subscript)
    ]
    if not places or not function.name.endswith("gradient"):
        return False
    block, place = places[0]
    block[place] = ast.Pass()
    return True


def test_a_wrong_version_does_not_run(monkeypatch, tmp_path):
    @tg.njit
    def sums(x, y, n):
        total = 0.0
        for i in range(x.size):
            total += np.sin(x[i]) * y[i] ** 2
        return total

    monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(passes, "PASSES", [lose_a_statement, *passes.PASSES])
    with types_only(), pytest.warns(SlowerCodeWarning, match=r"sums.*differs from.*is right"):
        text = tg.grad(sums).source(KINDS)
    assert generation.FASTER not in text
    monkeypatch.undo()
    with types_only(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert generation.FASTER in tg.grad(sums).source((*KINDS[:2], FLOAT))
