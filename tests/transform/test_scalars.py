"""Numbers: every elementwise op, in both modes and precisions; operators; mixed kinds."""

import functools
import math

import numba
import numpy as np
import pytest
from check import check, is_chosen, is_compiled, module, running, slope

import tapegrad as tg
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE
from tapegrad.transform.rules.partials import elementary

NAMED = [name for name in ("at_least", "at_most") if name in TABLE]  # spelled maximum and minimum
OPS = {k: op for k, op in TABLE.items() if isinstance(op, Elementwise) and k not in NAMED}
# where to look, the default being (0.37, 0.72)
POINTS = {
    "arccosh": (1.7, 0.7),
    "rint": (0.73, 0.7),
    "floor_divide": (0.9, 0.37),
    "mod": (-0.9, 0.37),
    "fmod": (-0.9, 0.37),
    "gammaln": (1.3, 0.7),
    "digamma": (1.3, 0.7),
    "polygamma": (1.3, 0.7),
}
# steps, which give integers, and what numba does not have
NOT_IN_NUMBA = ("floor", "ceil", "trunc", "fmod", "cbrt")
MATH = {
    "fabs": "absolute",
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "atan2": "arctan2",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "pow": "power",
    "lgamma": "gammaln",
    **{name: name for name in OPS if hasattr(math, name) and name not in NOT_IN_NUMBA},
}


def argument_text(op):
    """The arguments of a call of an op in terms of x and y."""
    if op.name == "where":
        return "x > 0.5, x * y, x + y"
    if op.name == "polygamma":
        return "1, x"
    return ", ".join("xy"[: len(op.arguments)])


def calls():
    """Every way to spell an op, with a point: (text, x, y)."""
    found = []
    for name, op in OPS.items():
        for prefix, where in (("np", np), ("tg", tg)):
            # numba's np.where of numbers is an array, and it has no np.i0
            if hasattr(where, name) and f"{prefix}.{name}" not in ("np.where", "np.i0"):
                found.append((f"{prefix}.{name}({argument_text(op)})", *place(name)))
    for spelled, name in MATH.items():
        found.append((f"math.{spelled}({argument_text(OPS[name])})", *place(name)))
    return found


def place(name):
    return POINTS.get(name, (0.37, 0.72))


ALONE = ("np.sinc", "np.angle", "tg.fmod", "tg.power")
CALLS = {text: (x, y) for text, x, y in calls()}


def is_compiled_call(text):
    """Whether the derivatives of a call are compiled in every run; Python cannot run all."""
    return text.startswith("tg.power") or is_chosen(text)


@functools.cache
def family(prefix, compiled):
    """A function of all calls with a prefix, weighted: a gradient for each call needs one compile.

    It returns the sum of weights times calls. Those that are compiled have one of their own.
    """
    texts = [t for t in CALLS if group(t) == prefix and is_compiled_call(t) == compiled]
    lines = [f"    if w[{k}] != 0:\n        s += w[{k}] * {text}" for k, text in enumerate(texts)]
    source = "import math\nimport numpy as np\nimport tapegrad as tg\n\n@tg.njit\n"
    source += "def f(w, x, y):\n    s = 0 * x\n" + "\n".join(lines) + "\n    return s\n"
    return module(source), texts


def group(text):
    """The family of a call: by its module; a few go alone."""
    return text if text.split("(")[0] in ALONE else text.split(".")[0]


def evaluate(text, dtype):
    """Value, gradient and tangent of one call at its point."""
    f, texts = family(group(text), is_compiled_call(text))
    w = np.zeros(len(texts), dtype)
    w[texts.index(text)] = 1
    x, y = map(dtype, CALLS[text])
    with running(is_compiled_call(text)) as run:
        value, gradient = run(tg.value_and_grad(f, (1, 2)))(w, x, y)
        tangent = run(tg.jvp(f, (1, 2)))(w, x, y, dtype(0.4), dtype(-0.7))[1]
    return value, gradient, tangent


def differences_of(text):
    f, texts = family(group(text), is_compiled_call(text))
    w = np.eye(len(texts))[texts.index(text)]
    x, y = CALLS[text]
    with running(is_compiled_call(text)) as run:
        value = run(f)
        return [
            slope(lambda t: value(w, x + t, y), 1.0),
            slope(lambda t: value(w, x, y + t), 1.0),
        ]


@pytest.mark.parametrize("text", CALLS)
def test_op(text):
    _, gradient, tangent = evaluate(text, float)
    np.testing.assert_allclose(gradient, differences_of(text), 1e-8, 1e-8)
    np.testing.assert_allclose(tangent, 0.4 * gradient[0] - 0.7 * gradient[1], 1e-12, 1e-12)


@pytest.mark.parametrize("text", [text for text in CALLS if not text.startswith("math")])
def test_op_beside_tensors(text):
    _, gradient, _ = evaluate(text, float)
    x, y = (tg.tensor(v, requires_grad=True) for v in CALLS[text])
    scope = {"np": np, "tg": tg, "x": x, "y": y}
    value = eval(text, scope) + 0 * (x + y)
    value.backward()
    np.testing.assert_allclose(gradient, [float(x.grad), float(y.grad)], 1e-12, 1e-12)


@pytest.mark.parametrize("text", [text for text in CALLS if text.startswith("np")])
def test_op_in_single_precision(text):
    wide = evaluate(text, np.float64)
    value, gradient, tangent = evaluate(text, np.float32)
    np.testing.assert_allclose(value, wide[0], 1e-5, 1e-5)
    np.testing.assert_allclose(gradient, wide[1], 1e-4, 1e-4)
    np.testing.assert_allclose(tangent, wide[2], 1e-4, 1e-4)


# -- operators -------------------------------------------------------------------------------------


@tg.njit
def operators(x, y):
    z = x + y * 2 - 3 / y
    z = z**2 + 2**x + x**y + x**3 + y**-1 + x**0.5
    return z + (-x) ** 2 + (+y) * x + abs(x - y) + x % 0.26 + (x + y) // 0.3


@tg.njit
def augmented(x, y):
    z = x
    z += y
    z *= x
    z -= y * x
    z /= y
    z **= 2
    z %= 10.0
    t = x * 10
    t //= 2.0
    return z * t


@tg.njit
def conditional(x, y, z):
    a = x if x > y else y * z
    b = (x if x > 2 else (x * x if x > 0.1 else 0.0)) if x > 0 else -x
    return a * b * (1.0 if (0 < x < y and not z > y) or x > 5 else z)


@tg.njit
def extremes(x, y, z):
    return min(x, y, z) * max(x, y) + abs(-x) + max(x, 0.5) + min(1, y) * max(z, x, y, 0)


@tg.njit
def rounded(x):
    s = np.floor(x) * x + np.ceil(x) * x + np.round(x) * x + int(x * 9) * x + round(x) * x
    return s + math.floor(3 * x) * x + math.ceil(x) + math.trunc(3 * x) * x + bool(x) * x


@tg.njit
def powers(x, n):
    return x**n + x**-2 + x**0 + n**x + math.pow(x, n) + pow(x, 2) + np.power(x, 3)


@tg.njit
def casts(x, y):
    return float(x) * np.float64(y) + math.inf * 0 if x > 2 else float(x) * np.float64(y) * np.e


@tg.njit
def assigned(x):
    y: float = x * 2
    a = b = y * x
    (c, d), e = (a, b * x), y
    c, d = d, c
    return c * d * e + c


@pytest.mark.parametrize(
    "f, args, tensors",
    [
        (operators, (0.3, 0.7), True),
        (augmented, (0.43, 0.7), False),
        (conditional, (0.3, 0.7, 0.4), True),
        (extremes, (0.3, 0.7, 0.4), False),
        (rounded, (0.7,), False),
        (powers, (0.7, 3), False),
        (casts, (0.7, 0.4), False),
        (assigned, (0.7,), True),
    ],
    ids=lambda value: value.py_func.__name__ if hasattr(value, "py_func") else None,
)
def test_operators(f, args, tensors):
    check(f, *args, tensors=tensors, hvp=f is operators)


# -- kinds of numbers ------------------------------------------------------------------------------


@tg.njit
def integers(x, n, b):
    y = n
    y = y * x
    k = 0
    k += n
    if b:
        k = k + 1
    t = 1
    for _ in range(n):
        t = t * x
    s = 0
    if n > 1:
        s = x
    u = 3 if b else x
    return y * k + n // 2 + t * s + u * x + n / 3 * x + (n & 1) * x


@tg.njit
def mixed(x, y):
    z = x * y
    z += np.sin(x)
    return z * 2 + np.exp(x) / y


@tg.njit
def constant(x):
    return 2.0 if x > 3 else 1.0


@pytest.mark.parametrize("b", [False, True])
def test_integers_are_passive(b):
    check(integers, 0.3, 3, b)


def test_an_integer_argument_has_no_gradient():
    with pytest.raises(tg.TransformError, match=r"argument 1 \(n\).*int64"):
        tg.grad(integers, 1)(0.3, 3, True)


def test_mixed_precision():
    check(mixed, np.float32(0.3), 0.7)
    check(mixed, np.float32(0.3), np.float32(0.7))
    assert isinstance(tg.grad(mixed)(np.float32(0.3), 0.7), (float, np.floating))


def test_a_constant_has_gradient_zero():
    assert tg.value_and_grad(constant)(1.0) == (1.0, 0.0)


def test_powers_of_zero():
    f = module(
        "import tapegrad as tg\n@tg.njit\ndef f(x):\n    return x ** 2 + x ** 1 + x ** 0 + 3 * x\n"
    )
    assert tg.value_and_grad(f)(0.0) == (1.0, 4.0)
    assert tg.hvp(f)(0.0, 1.0) == 2.0


# -- functions that are no ops on tensors ----------------------------------------------------------


@tg.njit
def angles(x, y):
    s = math.radians(x) * np.deg2rad(y) + np.radians(x * y)
    return s * math.degrees(x) + np.rad2deg(y) * np.degrees(x)


@tg.njit
def signs_and_sizes(x, y, n):
    s = math.copysign(x, -y) * np.copysign(y, x) + math.copysign(2.0, x) * x
    return s + math.ldexp(x, 3) * np.ldexp(y, n) + math.gamma(x + 1.5) + np.float_power(x, y)


@tg.njit
def whole_arrays(a, y):
    s = np.radians(a) * np.degrees(a) + np.copysign(a, -y) * np.copysign(y, a) + np.ldexp(a, 2)
    return (s * np.float_power(np.abs(a), y)).sum() + np.nan_to_num(a * y).sum()


@tg.njit
def limited(x, a, low):
    b = np.clip(a, low, 0.5) * np.clip(a, None, 0.6) * a.clip(low, None)
    return (b * b).sum() * x + np.clip(a, low, 0.4)[0] ** 2


@pytest.mark.parametrize(
    "f, args",
    [
        (angles, (0.7, 0.4)),
        (signs_and_sizes, (0.7, 0.4, 2)),
        (whole_arrays, (np.array([0.3, -0.7, 0.4]), 1.3)),
        (limited, (0.7, np.array([0.3, -0.7, 0.9, 0.55]), 0.1)),
    ],
    ids=lambda value: value.py_func.__name__ if hasattr(value, "py_func") else None,
)
def test_functions_of_compiled_code(f, args):
    check(f, *args, hvp=True)


def test_on_a_bound_the_number_has_the_derivative():
    f = module(
        "import numpy as np, tapegrad as tg\n@tg.njit\ndef f(a, b):\n"
        "    return np.clip(a, b, 0.5).sum()\n"
    )
    a = np.array([0.1, 0.5, 0.7, 0.0])
    found = tg.grad(f, (0, 1))(a, 0.1)
    t, b = tg.tensor(a, requires_grad=True), tg.tensor(0.1, requires_grad=True)
    tg.clip(t, b, 0.5).sum().backward()
    np.testing.assert_array_equal(found[0], t.grad.numpy())
    assert found[1] == float(b.grad)


ALL_UFUNCS = [f.__name__ for f in numba.core.typing.npydecl.supported_ufuncs]
KNOWN = {f.__name__ for f in elementary() if hasattr(f, "__name__")}
PASSIVE = {"isfinite", "isinf", "isnan", "signbit", "gcd", "lcm", "isnat", "greater", "less"}
REFUSED = {
    "np.nextafter(x, y)", "np.spacing(x)", "math.nextafter(x, y)", "math.frexp(x)[0]",
    "np.divmod(x, y)[1]",
}  # fmt: skip


def test_every_ufunc_is_known_or_named():
    refused = {text.split("(")[0].removeprefix("np.") for text in REFUSED}
    logical = {name for name in ALL_UFUNCS if name.startswith(("logical", "bitwise", "invert"))}
    compared = {"less_equal", "equal", "not_equal", "greater_equal", "left_shift", "right_shift"}
    assert set(ALL_UFUNCS) <= KNOWN | PASSIVE | refused | logical | compared


@pytest.mark.parametrize("text", sorted(REFUSED))
def test_refused_by_name(text):
    f = module(
        f"import math\nimport numpy as np, tapegrad as tg\n@tg.njit\ndef f(x, y):\n"
        f"    return {text} * x\n"
    )
    name = text.split("(")[0]
    with pytest.raises(tg.TransformError, match=rf"line 5[\s\S]*{name}"):
        tg.grad(f)(0.7, 0.3)


# -- derivatives that are infinite where the function is not ---------------------------------------


@tg.njit
def soft_minimum(x, y, gamma):
    a = x / -gamma
    b = y / -gamma
    top = max(a, b)
    return -gamma * (math.log(math.exp(a - top) + math.exp(b - top)) + top)


def test_the_soft_minimum_of_an_infinite_cost():
    value, gradient = tg.value_and_grad(soft_minimum, (0, 1, 2))(math.inf, 0.7, 0.5)
    assert value == 0.7
    np.testing.assert_allclose(gradient, (0.0, 1.0, 0.0), 1e-15, 1e-15)
    tangent = tg.jvp(soft_minimum, (1, 2))(math.inf, 0.7, 0.5, 1.0, 1.0)[1]
    assert tangent == pytest.approx(1.0, abs=1e-15)


UNUSED = {
    "math.sqrt(x) * 0.0 + y": (0.0, 1.0),
    "np.logaddexp(x - np.inf, y)": (0.0, 1.0),
    "min(1.0 / x, y)": (0.0, 1.0),
}
AT_INFINITY = [  # used, and the derivative may be anything: that of the arc tangent is -1
    "math.exp(-1.0 / x) + y",
    "math.tanh(1.0 / x) * y",
    "math.atan(1.0 / x) + y",
    "math.erf(1.0 / x) + y",
    "math.expm1(-1.0 / x) + y",
    "np.logaddexp2(-1.0 / x, y)",
]


@pytest.mark.parametrize("text", AT_INFINITY)
def test_the_derivative_of_what_is_constant_at_infinity_alone_is_nan(text):
    f = module(
        "import math\nimport numpy as np, tapegrad as tg\n"
        "@tg.njit(error_model='numpy')\ndef f(x, y):\n"
        f"    return {text}\n"
    )
    with running(is_chosen(text)) as run:
        np.testing.assert_array_equal(run(tg.grad(f, (0, 1)))(0.0, 0.7), (np.nan, 1.0))
        tangents = [run(tg.jvp(f, (k,)))(0.0, 0.7, 1.0)[1] for k in (0, 1)]
        np.testing.assert_array_equal(tangents, (np.nan, 1.0))


@pytest.mark.parametrize("text", UNUSED)
def test_what_is_not_used_passes_nothing_on(text):
    f = module(
        "import math\nimport numpy as np, tapegrad as tg\n"
        "@tg.njit(error_model='numpy')\ndef f(x, y):\n"
        f"    return {text}\n"
    )
    with running(is_chosen(text)) as run:
        assert run(tg.grad(f, (0, 1)))(0.0, 0.7) == UNUSED[text]
        if "sqrt" not in text:  # a product of infinity and 0, which is not a derivative
            assert tuple(run(tg.jvp(f, (k,)))(0.0, 0.7, 1.0)[1] for k in (0, 1)) == UNUSED[text]


def test_a_cotangent_of_zero_still_has_a_derivative():
    f = module("import tapegrad as tg\n@tg.njit\ndef f(x, y):\n    z = x / y\n    return z * z\n")
    assert tg.hvp(f)(0.0, 0.5, 1.0) == 8.0
    g = module(
        "import tapegrad as tg\n@tg.njit\ndef f(a, y):\n    z = a / y\n    return (z * z).sum()\n"
    )
    np.testing.assert_array_equal(tg.hvp(g)(np.zeros(2), 0.5, np.ones(2)), [8, 8])


@tg.njit
def outflow(level, exponent):
    return max(0.0, 0.3 * (1.0 - level**exponent))


@tg.njit
def power_and_product(level):
    root = math.sqrt(level)
    return root * level, 2.0 * level


@tg.njit
def reservoir(rain, exponent):
    level, total = 0.1, 0.0
    for i in range(rain.size):
        level -= rain[i]  # negative from the second step on: the power is nan
        flow = outflow(level, exponent) * rain[i]
        first, second = power_and_product(level)
        total += flow * flow + second
        if level > 0.0:
            total += first
    return total


def test_undefined_values_that_are_not_used():
    check(reservoir, np.array([0.05, 0.2, 0.1]), 1.5, argnums=(0,), compiled=True)


def test_sources_for_arguments_that_are_left_out():
    f = module("import tapegrad as tg\n@tg.njit\ndef f(x, p=0.5):\n    return p * x * x\n")
    assert "x_bar" in f.adjoint_source(0.3)
    assert "x_dot" in f.tangent_source(0.3)


@tg.njit
def smallest_logarithm(a):
    found = np.inf
    for v in a:
        found = min(found, np.log(v))
    return found


@tg.njit
def largest_logarithm(a):
    found = -np.inf
    for v in a:
        found = max(found, np.log(v))
    return found


@pytest.mark.parametrize("f", [smallest_logarithm, largest_logarithm])
def test_min_and_max_of_a_number_and_nan(f):
    """Python's are the first where the second is nan, and so is their derivative."""
    with running(is_compiled(f)) as run, np.errstate(invalid="ignore"):
        value, gradient = run(tg.value_and_grad(f))(np.array([0.4, -0.6]))
        tangent = run(tg.jvp(f))(np.array([0.4, -0.6]), np.array([1.0, 1.0]))[1]
    assert value == np.log(0.4)
    np.testing.assert_allclose(gradient, [2.5, 0.0])
    np.testing.assert_allclose(tangent, 2.5)


@pytest.mark.parametrize("after", ["{} ** 2", "np.sin({})", "x * {}", "{} / x", "np.hypot({}, x)"])
@pytest.mark.parametrize(
    "risky", ["np.log(x)", "np.sqrt(x)", "x**1.5", "1.5**(1.0 / np.sqrt(x))", "np.arccosh(x)"]
)
def test_what_follows_from_nan_and_is_not_chosen(risky, after):
    text = f"""
import numpy as np

def f(x):
    return max(0.7, {after.format(f"({risky})")})
"""
    f = tg.njit(module(text))
    with running(is_chosen(text)) as run, np.errstate(invalid="ignore"):
        assert run(tg.value_and_grad(f))(-0.6) == (0.7, 0.0)
        assert run(tg.jvp(f))(-0.6, 1.0) == (0.7, 0.0)
