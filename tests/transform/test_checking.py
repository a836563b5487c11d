"""Derivatives that check themselves: what is right passes, what is wrong is named."""

import ast
import math
import re
import warnings
from collections import namedtuple

import numba
import numpy as np
import pytest
from check import module

import tapegrad as tg
from tapegrad.transform.checks import checking, probes
from tapegrad.transform.codegen import store
from tapegrad.transform.frontend.body import Body
from tapegrad.transform.frontend.conditions import Condition
from tapegrad.transform.frontend.expressions import Expressions

A = np.array([0.3, 0.7, -0.4])
Line = namedtuple("Line", "slope offset")


@pytest.fixture(autouse=True)
def _asked_for_alone(monkeypatch):
    monkeypatch.delenv("TAPEGRAD_VERIFY", raising=False)


@pytest.fixture
def runs(monkeypatch):
    """The names of the derivatives that are checked."""
    found = []
    run = checking.Check.run

    def noted(self):
        found.append(type(self.claim.derivative).__name__)
        return run(self)

    monkeypatch.setattr(checking.Check, "run", noted)
    return found


@pytest.fixture
def faulty(monkeypatch, tmp_path):
    """Changes the text of generated functions, which go to a folder of their own."""
    monkeypatch.setenv("TAPEGRAD_CACHE_DIR", str(tmp_path))
    changes = []
    save = store.save

    def changed(key, body, *rest):
        for change in changes:
            pattern, new, only = change[:3]
            if f"def {only}" in body:
                body, count = re.subn(pattern, new, body)
                change[3] += count
        return save(key, body, *rest)

    monkeypatch.setattr(store, "save", changed)
    yield lambda pattern, new, only="": changes.append([pattern, new, only, 0])
    assert all(count for *_, count in changes)


def made(text):
    return module(f"import math, numpy as np, tapegrad as tg\n@tg.njit(verify=True)\n{text}")


# -- what is right ---------------------------------------------------------------------------------


@tg.njit(verify=True)
def misfit(t, y, a, b=1.0):
    total = 0.0
    for i in range(len(t)):
        total += (a * math.exp(-b * t[i]) - y[i]) ** 2
    return total


@tg.njit(verify=True)
def twist(v):
    v[0] = v[0] * v[1]
    tail = v[1:]
    return v[0] * tail[1], v * 2.0, 3


@tg.njit(verify=True)
def energy(line, t):
    return (line.slope * t + line.offset) ** 2


@tg.njit(verify=True)
def kinks(v):
    return abs(v[0]) + max(v[1], v[2]) + math.floor(v[0]) + min(v[1], 0.0)


@tg.njit(verify=True)
def steps(x):
    return math.floor(x) * x


@tg.njit(verify=True)
def cancelled(x):
    return math.exp(x) / math.exp(x) + math.sin(x) ** 2 + math.cos(x) ** 2


@tg.njit(verify=True)
def endless(x):
    return math.sqrt(x) * 2.0


@tg.njit(verify=True)
def stopped(x):
    return x * tg.stop_gradient(x)


@tg.njit(verify=True)
def norm(m):
    return np.sqrt((m * m).sum())


@tg.njit(verify=True)
def noisy(x, n):
    total = 0.0
    for _ in range(n):
        total += x * np.random.normal() + np.random.random()
    return total


@tg.njit(verify=True)
def chaotic(x, n):
    for _ in range(n):
        x = 3.9 * x * (1.0 - x)
    return x


T, Y = np.array([0.0, 1.0, 2.0]), np.array([2.0, 1.0, 0.5])


@pytest.mark.parametrize(
    ("derivative", "args", "checked"),
    [
        (tg.grad(misfit, 2), (T, Y, 2.0, 1.0), 1),
        (tg.grad(misfit, (2, 0)), (T, Y, 2.0), 1),
        (tg.value_and_grad(misfit, (1, 3)), (T, Y, 2.0, 1.0), 1),
        (tg.jvp(misfit, (0, 2)), (T, Y, 2.0, 1.0, T, 1), 1),
        (tg.hvp(misfit), (T, Y, 2.0, 1.0, Y), 2),
        (tg.jacobian(misfit, (0, 2)), (T, Y, 2.0, 1.0), 1),
        (tg.hessian(misfit), (T, Y, 2.0, 1.0), 2),
        (tg.grad(tg.grad(misfit, 2), 3), (T, Y, 2.0, 1.0), 2),
        (tg.jvp(twist), (A, A), 1),
        (tg.grad(energy), (Line(2.0, 3.0), 5.0), 1),
        (tg.jvp(energy), (Line(2.0, 3.0), 5.0, Line(1.0, 0.0)), 1),
        (tg.grad(kinks), (np.array([0.0, 0.0, 0.0]),), 1),
        (tg.grad(tg.njit(kinks.py_func, verify=True)), (A,), 1),
        (tg.grad(steps), (2.0,), 1),
        (tg.grad(cancelled), (1.3,), 1),
        (tg.grad(endless), (0.0,), 1),
        (tg.grad(stopped), (3.0,), 1),
        (tg.grad(norm), (np.arange(6.0, dtype=np.float32).reshape(2, 3),), 1),
        (tg.grad(norm), (np.arange(12.0).reshape(3, 4).T[1:, ::2],), 1),
        (tg.jacobian(norm), (np.ones((1, 3)),), 1),
        (tg.grad(noisy), (0.7, 3), 1),
        (tg.grad(chaotic), (0.3, 200), 1),
    ],
)
def test_right_derivatives_pass(derivative, args, checked, runs):
    derivative.recompile()  # another test may have called it already
    first = derivative(*[probes.copied(a) for a in args])
    assert 1 <= len(runs) <= checked
    second = derivative(*[probes.copied(a) for a in args])
    assert len(runs) <= checked
    if derivative is not tg.grad(noisy):
        assert checking._same(first, second, 0.0)


def test_once_for_each_tuple_of_types(runs):
    f = made("def f(x):\n    return x.sum() if x.ndim else 0.0")
    slope = tg.grad(f)
    for x in (A, A, A[::2], A.astype(np.float32), A):
        slope(x)
    assert runs == ["Pullback"] * 3


def test_not_unless_asked_for(runs, monkeypatch):
    text = "import tapegrad as tg\n@tg.njit{}\ndef f(x):\n    return x * x"
    plain, without = module(text.format("")), module(text.format("(verify=False)"))
    slope = tg.grad(plain)
    slope(2.0)
    assert runs == []
    monkeypatch.setenv("TAPEGRAD_VERIFY", "1")
    slope(3.0)  # was called before
    tg.grad(without)(2.0)
    assert runs == []
    tg.jvp(plain)(2.0, 1.0)
    assert runs == ["Pushforward"]
    tg.grad(numba.njit(plain.py_func))(2.0)
    assert runs == ["Pushforward", "Pullback"]


def test_a_call_from_compiled_code_does_not_replace_the_check(runs):
    f = made("def f(x):\n    return x * x * x")
    slope = tg.grad(f)
    caller = numba.njit(lambda x: slope(x) + 1.0)
    assert caller(2.0) == 13.0
    assert runs == []
    assert slope(2.0) == 12.0
    assert runs == ["Pullback"]


def test_arguments_are_left_as_by_one_call():
    f = made("def f(x, pair):\n    x *= 2.0\n    pair[0][0] += 1.0\n    return x.sum() * pair[1]")
    x, inner = A.copy(), A.copy()
    tg.grad(f)(x, (inner, 2.0))
    np.testing.assert_array_equal(x, 2.0 * A)
    np.testing.assert_array_equal(inner, A + [1.0, 0.0, 0.0])
    tangent = np.ones(3)
    tg.jvp(f)(x, (inner, 2.0), tangent)
    np.testing.assert_array_equal(tangent, np.ones(3))


@numba.njit
def seeded(n):
    np.random.seed(n)


@numba.njit
def drawn():
    return np.random.random()


def test_random_numbers_are_those_without_a_check():
    f = made("def f(x):\n    return x * np.random.normal() * np.random.random()")
    plain = tg.njit(f.py_func)
    found = []
    for function in (plain, f):
        slope = tg.grad(function)
        seeded(3)
        found.append((slope(2.0), drawn()))
    assert found[0] == found[1]


def test_an_error_of_the_function_is_its_own(runs):
    f = made("def f(x):\n    assert x > 0.0, 'positive'\n    return math.log(x)")
    slope = tg.grad(f)
    for _ in range(2):
        with pytest.raises(AssertionError, match="positive"):
            slope(-1.0)
    assert slope(2.0) == 0.5 == slope(2.0)
    assert runs == ["Pullback"] * 3


def test_with_tensors():
    f = made("def f(x):\n    return x.sum() ** 2")

    @f.defvjp
    def wrong(x, z, g):
        return (g * x,)

    with pytest.raises(tg.VerificationError, match="wrong"):
        f(tg.tensor([1.0, 2.0], requires_grad=True))


# -- wrong rules -----------------------------------------------------------------------------------


def product(m, x):
    return m @ x


def ruled(vjp=None, jvp=None):
    """A function that calls one with rules."""
    inner = tg.njit(product, verify=True)
    if vjp is not None:
        inner.defvjp(vjp)
    if jvp is not None:
        inner.defjvp(jvp)

    def f(m, x):
        return (inner(m, x) ** 2).sum()

    return tg.njit(f, verify=True)


def right_vjp(m, x, z, g):
    return np.outer(g, x), m.T @ g


def right_jvp(m, x, m_dot, x_dot):
    return m_dot @ x + m @ x_dot


def factor(m, x, z, g):
    return np.outer(g, x), (m.T @ g) * 1.0001


def sign(m, x, z, g):
    return -np.outer(g, x), m.T @ g


def transposed(m, x, z, g):
    return np.outer(x, g), m.T @ g


def one_element(m, x, z, g):
    by_m = np.outer(g, x)
    by_m[1, 2] = 0.0
    return by_m, m.T @ g


M = np.array([[1.3, 0.5, 0.1], [0.6, 2.4, 0.3], [0.2, -0.3, 1.7]])


def test_right_rules_pass():
    f = ruled(right_vjp, right_jvp)
    gradients = tg.grad(f, (0, 1))(M, A)
    np.testing.assert_allclose(gradients[1], 2 * M.T @ M @ A)
    tg.jvp(f, (0, 1))(M, A, M, A)


@pytest.mark.parametrize(
    ("rule", "argument"),
    [
        (factor, "1 (x)"),
        (sign, "0 (m)"),
        (transposed, "0 (m)"),
        (one_element, "0 (m)"),
    ],
)
def test_wrong_reverse_rules(rule, argument):
    f = ruled(rule, right_jvp)
    slope = tg.grad(f, (0, 1))
    for _ in range(2):  # no wrong number is ever returned
        with pytest.raises(tg.VerificationError) as caught:
            slope(M, A)
        text = str(caught.value)
        assert f"by argument {argument} is wrong" in text
        assert f"{rule.__name__} (defvjp of product" in text and "test_checking.py" in text
        assert "forward mode" in text and "difference quotient" in text


def test_what_uses_a_wrong_rule_and_what_does_not():
    @tg.njit(verify=True)
    def cube(x):
        return x * x * x

    @cube.defvjp
    def wrong(x, z, g):
        return (3.1 * g * x * x,)

    @tg.njit(verify=True)
    def f(x):
        return cube(2.0 * x)

    for derivative in (tg.grad(cube), tg.value_and_grad(cube)):
        with pytest.raises(tg.VerificationError, match="cube has a rule of its own, which is wro"):
            derivative(2.0)
    for derivative, args in ((tg.grad(f), (2.0,)), (tg.hvp(f), (2.0, 1.0))):
        with pytest.raises(tg.VerificationError, match=r"gradient of f(.|\n)*It uses rules"):
            derivative(*args)
    with pytest.raises(tg.VerificationError, match="It uses rules"):  # it follows from the rule
        tg.jvp(f)(2.0, 1.0)


def wrong_jvp(m, x, m_dot, x_dot):
    return m_dot @ x - m @ x_dot


def test_wrong_forward_rules():
    f = ruled(right_vjp, wrong_jvp)
    with pytest.raises(tg.VerificationError, match=r"argument 1 \(x\)(.|\n)*defjvp of product"):
        tg.jvp(f, (0, 1))(M, A, M, A)
    tg.grad(f, (0, 1))(M, A)  # is right


def test_two_rules_that_agree_are_compared_with_the_function():
    def vjp(m, x, z, g):
        return np.outer(g, x), m.T @ g * 2.0

    def jvp(m, x, m_dot, x_dot):
        return m_dot @ x + m @ x_dot * 2.0

    f = ruled(vjp, jvp)
    with pytest.raises(tg.VerificationError, match=r"argument 1 \(x\)"):
        tg.grad(f, (0, 1))(M, A)
    with pytest.raises(tg.VerificationError, match=r"argument 1 \(x\)"):
        tg.jvp(f, (0, 1))(M, A, M, A)


def test_where_one_mode_is_refused_the_quotient_judges():
    def wrong(x, x_dot):
        return x_dot[np.argmax(x)]

    def right(x, x_dot):
        return x_dot[np.argmin(x)]

    for rule in (wrong, right):
        f = made("def f(x):\n    return np.nextafter(np.min(x), 1.0)")
        f.defjvp(rule)
        with pytest.raises(tg.TransformError, match="f has a forward rule only"):
            tg.grad(f)(A)
        if rule is wrong:
            with pytest.raises(tg.VerificationError, match="wrong"):
                tg.jvp(f)(A, A)
        else:
            np.testing.assert_allclose(tg.jvp(f)(A, A), (-0.4, -0.4))


# -- faults of generated code ----------------------------------------------------------------------


def test_a_cotangent_that_is_overwritten(faulty):
    faulty(r"a_bar \+=", "a_bar =", only="f_gradient")
    f = made("def f(a, b):\n    return a * b + a * math.sin(a)")
    with pytest.raises(tg.VerificationError, match=r"argument 0 \(a\)") as caught:
        tg.grad(f, (0, 1))(0.7, 0.3)
    assert "defect of tapegrad" in str(caught.value)


def test_a_wrong_tangent(faulty):
    faulty(r"np\.cos", "np.sin", only="f_tangent")
    f = made("def f(a):\n    return math.sin(a)")
    with pytest.raises(tg.VerificationError, match="the tangent of f by argument 0"):
        tg.jvp(f)(0.7, 1.0)
    assert tg.grad(f)(0.7) == math.cos(0.7)


def test_a_wrong_partial_in_both_modes(faulty):
    faulty(r"np\.cos", "0.999 * np.cos")
    f = made("def f(a):\n    return math.sin(a) + a")
    for derivative, args in ((tg.grad(f), ()), (tg.jvp(f), (1.0,)), (tg.jacobian(f), ())):
        with pytest.raises(tg.VerificationError, match="difference quotient"):
            derivative(0.7, *args)


def test_a_wrong_second_derivative(faulty):
    faulty(r"np\.cos", "np.sin", only="f_gradient_tangent")
    f = made("def f(x):\n    return math.sin(x) + math.cos(x)")
    assert tg.grad(f)(0.7) == math.cos(0.7) - math.sin(0.7)
    with pytest.raises(tg.VerificationError, match="the Hessian product of f"):
        tg.hvp(f)(0.7, 1.0)


def test_a_wrong_value(faulty):
    faulty(r"return \((\w+),", r"return (2.0 * \1,", only="f_gradient")
    f = made("def f(x):\n    return x * x")
    with pytest.raises(tg.VerificationError, match=r"the value 18\.0; the function returns 9\.0"):
        tg.value_and_grad(f)(3.0)


def test_an_argument_that_is_changed(faulty):
    faulty("    return", "    x[0] = 0.0\n    return", only="f_gradient")
    f = made("def f(x):\n    return x[0] * x[1]")
    with pytest.raises(tg.VerificationError, match=r"does not leave argument 0 \(x\) as the func"):
        tg.grad(f)(A.copy())


def test_a_tangent_that_is_changed(faulty):
    faulty(r"    return \(value", "    x_dot[0] = 0.0\n    return (value", only="f_pushforward")
    f = made("def f(x):\n    return x[0] * x[1]")
    with pytest.raises(tg.VerificationError, match="writes into a tangent"):
        tg.jvp(f)(A, A.copy())


def test_a_gradient_that_depends_on_the_call_before(faulty):
    lines = ["found = runtime.take_tape()", "x_bar += 1.0 if found[9] == 5.0 else 0.0"]
    lines += ["found[9] = 5.0", "runtime.give_tape(found)"]
    faulty("    return", "".join(f"    {line}\n" for line in lines) + "    return", "f_gradient")
    f = made("def f(x):\n    return x * x")
    with pytest.raises(tg.VerificationError, match="second call"):
        tg.grad(f)(3.0)


def test_a_wrong_rule_of_whole_arrays(faulty):
    faulty(r"arrays\.mean_vjp_x", "arrays.sum_vjp_x")
    f = made("def f(x):\n    return x.mean() * x[0]")
    with pytest.raises(tg.VerificationError, match=r"argument 0 \(x\)"):
        tg.grad(f)(A)


# -- what is wrong before there is generated code -----------------------------------------------


def other_branch(self, test, visit, left=Condition.left):
    """Comparisons with strings never hold."""
    asks_for_text = any(
        isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(test)
    )
    return False if asks_for_text else left(self, test, visit)


def middle_twice(self, left, ops, others, env, stem):
    """Operands in the middle of a comparison are evaluated for both sides."""
    first = self.body.let(ast.Compare(left, ops[:1], [self.expression(others[0], env)]), stem)
    if len(ops) == 1:
        return first
    again = self.expression(others[0], env)
    return self.choice(
        first,
        lambda inner: self.comparison(again, ops[1:], others[1:], inner, stem),
        lambda _: first,
        env,
        stem,
    )


OPTION = """
@tg.njit
def g(x, kind):
    if kind == "call":
        return x[0] * x[1]
    return x[0] + x[1]
"""
HALVE = """
@tg.njit
def g(x):
    x[0] = x[0] * x[1]
    return x[0]
"""
CALLS = {
    "a string chooses in a helper": (
        *(Condition, "left", other_branch),
        OPTION + "VERIFIED\ndef f(x):\n    return g(x, 'call') * 2.0\n",
    ),
    "an element is read after the call": (
        *(Body, "has_effects", lambda self, node: False),
        HALVE + "VERIFIED\ndef f(x):\n    y = x * 1.0\n    y[0] += g(y)\n    return y[0]\n",
    ),
    "a condition writes": (
        *(Body, "has_effects", lambda self, node: False),
        HALVE + "VERIFIED\ndef f(x):\n    y = x * 1.0\n    while g(y) > 0.05:\n"
        "        y[1] *= y[1]\n    return y[0] + y[1]\n",
    ),
    "the middle of a comparison is called twice": (
        *(Expressions, "comparison", middle_twice),
        HALVE + "VERIFIED\ndef f(x):\n    y = x * 1.0\n    if 0.0 < g(y) < 50.0:\n"
        "        return y[0] * 2.0\n    return y[0]\n",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_another_order_or_branch_than_the_function(name, monkeypatch):
    monkeypatch.setattr(store, "load", lambda key, recipe: None)
    owner, attribute, defect, text = CALLS[name]
    text = text.replace("VERIFIED", "@tg.njit(verify=True)")
    text = f"import math, numpy as np, tapegrad as tg\n{text}"
    for derivative, rest in ((tg.grad, ()), (tg.jvp, (np.array([1.0, -0.5]),))):
        x = np.array([0.7, 0.8])
        derivative(module(text))(x, *rest)  # right
        with monkeypatch.context() as patched, warnings.catch_warnings():
            warnings.simplefilter("ignore", tg.UnconfirmedWarning)  # some differ from the source
            patched.setattr(owner, attribute, defect)
            with pytest.raises(
                tg.VerificationError, match=r"argument 0 \(x\) is wrong|with the value"
            ):
                derivative(module(text))(x, *rest)
