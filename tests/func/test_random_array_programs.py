"""Random programs on arrays, with items that are kept, changed and exchanged: one meaning for all.

A program is called with arrays, recorded, differentiated, applied to a batch, and called with a
batch of one item; values are equal, and gradients are those of differences of the direct call.
Items are numbers, as in NumPy, whatever function made the array. Called with tensors, the same
programs have views for items, as in PyTorch, and again one meaning.
"""

import random

import numpy as np
import pytest

import tapegrad as tg

N = 3
X = np.array([0.413, 1.127, 0.671])
Y = np.array([[0.931, 0.217, 1.373], [0.559, 0.837, 0.173]])

ARRAYS = [
    "tg.sin({a})", "tg.maximum({a}, 0.3)", "tg.maximum({a}, {b})", "{a} * {b}", "{a} + 0.5 * {b}",
    "tg.tanh({a}) - {s}", "tg.cumsum({a})", "tg.flip({a}, 0)", "tg.stack([{s}, {t}, {s} * {t}])",
    "tg.where({a} > {b}, {a}, 0.5 * {b})", "np.exp(-{a})", "tg.array({a})", "tg.asarray({a}) * 1.0",
    "tg.concatenate([{a}[1:], {b}[:1]])", "{m}[0] * 1.0", "tg.sum({m} * {a}, axis=0)", "{s} * {a}",
    "tg.hypot({a}, {b})", "{m} @ {a} @ {m}", "copy.copy({a})", "tg.sort({a})",
    "tg.array([{s}, {t}, 0.5])",
    "tg.logaddexp({a}, {b})", "tg.linspace({s}, {t}, 3)", "tg.roll({a}, 1)", "tg.square({a})",
]  # fmt: skip
MATRICES = [
    "tg.outer({a}, {b})", "{m} * {a}", "tg.sin({m})", "tg.stack([{a}, {b}])", "{m} + {s}",
    "tg.vstack([{a}, {b}])", "tg.maximum({m}, {a})", "tg.array([{a}, {b}])",
]  # fmt: skip
NUMBERS = [
    "{a}[{i}]", "{a}[{i}]", "{a}[-1]", "{m}[{r}, {i}]", "tg.sum({a})", "tg.mean({m})",
    "tg.max({a})",
    "{s} * {t}", "tg.sin({s})", "tg.dot({a}, {b})", "{a}[tg.argmax({b})]", "{s}", "tg.prod({a})",
    "tg.median({a})", "np.sum({a})", "{a}.sum()",
]  # fmt: skip
CHANGES = [
    "{s} += {t}", "{s} *= 0.5", "{s} -= {a}[{i}]", "{w}[{i}] = {s}", "{w}[{i}] += {t}",
    "{w} *= 0.5", "{w} += {a}", "{w}[{i}], {w}[{j}] = {w}[{j}], {w}[{i}]", "{w}[1:] *= {s}",
    "{w}[:2] = {w}[1:] * 1.0", "{v}[{r}] += {a}", "{v}[{r}, {i}] = {s}", "{v}[:, {i}] *= 0.7",
    "row = {v}[{r}]\n    row += {s}", "part = {w}[::-1]\n    part[{i}] = {t}",
    "for item in {a}:\n        {s} += item", "kept = {w}[{i}]\n    {w}[{i}] = {t}\n    {s} = kept",
    "for k, item in enumerate({w}):\n        if k < 2:\n            {w}[k + 1] += 0.5 * item",
    "one, two, three = {w}\n    {w}[0] = {t}\n    one += 0.5\n    {s} = one * two + three",
    "{s} = {t} = {a}[{i}]\n    {s} += 1.0", "{w}[{i}, ...] *= 0.5",
    "{w}[{i}] /= 1.0 + {w}[{j}] ** 2",
]  # fmt: skip


def program(seed):
    """Return the source of a function of a vector, a matrix and a number."""
    choose = random.Random(seed)
    arrays, matrices, numbers = ["x"], ["y"], ["z"]  # which all may be read
    own_arrays, own_matrices, own_numbers = [], [], []  # which may be changed
    lines = []

    def fill(text):
        names = {
            "a": choose.choice(arrays), "b": choose.choice(arrays), "m": choose.choice(matrices),
            "s": choose.choice(own_numbers or numbers), "t": choose.choice(numbers),
            "w": choose.choice(own_arrays), "v": choose.choice(own_matrices),
            "i": choose.randrange(N), "j": choose.randrange(N), "r": choose.randrange(2),
        }  # fmt: skip
        return text.format(**names)

    def define(kinds, prefix, *lists):
        name = f"{prefix}{len(lines)}"
        text = choose.choice(kinds) if own_numbers else kinds
        lines.append(f"{name} = {fill(text) if own_numbers else text}")
        for names in lists:
            names.append(name)

    for kinds, prefix, names, own in (
        (choose.choice(["tg.maximum(x, x)", "tg.sin(x)", "tg.zeros(3)", "x * 1.0"]), "a", arrays,
         own_arrays),
        (choose.choice(["tg.tanh(y)", "tg.zeros((2, 3))", "y * 1.0"]), "m", matrices, own_matrices),
    ):  # fmt: skip
        define(kinds, prefix, names, own)
    if "zeros" in lines[0]:  # made of numbers until something else is written to it
        lines.append(f"{own_arrays[0]}[...] = x")
    if "zeros" in lines[1]:
        lines.append(f"{own_matrices[0]}[...] = y")
    define(choose.choice(["tg.sin(z)", f"{arrays[-1]}[0]", "tg.sum(x)"]), "s", numbers, own_numbers)
    for _ in range(choose.randrange(4, 9)):
        kind = choose.random()
        if kind < 0.22:
            define(ARRAYS, "a", arrays, own_arrays)
            lines[-1] = lines[-1].replace("= ", "= (", 1) + ") * 1.0"  # no view, and not repeated
        elif kind < 0.3:
            define(MATRICES, "m", matrices, own_matrices)
            lines[-1] = lines[-1].replace("= ", "= (", 1) + ")[:2, :3] * 1.0"
        elif kind < 0.55:
            define(NUMBERS, "s", numbers, own_numbers)
        else:
            lines.append(fill(choose.choice(CHANGES)))
    total = " + ".join(
        [f"tg.sum({name} * W)" for name in own_arrays]
        + [f"tg.sum({name} * V)" for name in own_matrices]
        + own_numbers
    )
    return "def f(x, y, z):\n    " + "\n    ".join([*lines, f"return {total}"]) + "\n"


SCOPE = {
    "tg": tg, "np": np, "copy": __import__("copy"), "W": np.array([1.0, -0.6, 0.3]),
    "V": np.array([[0.2, 0.9, -0.4], [1.1, -0.3, 0.8]]),
}  # fmt: skip
REFUSED = (
    "modified by an inplace operation", "in-place operation", "item by item", "vmap:",
    "changed in place", "cannot hold a gradient", "would lose its gradient", "to an array",
)  # fmt: skip


def unless_refused(call):
    try:
        return call()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        if not any(text in str(error) for text in REFUSED):
            raise
        return None


def batches(args):
    return [np.stack([a, a]) for a in map(np.asarray, args)]


def check(source, recorded=False):
    scope = dict(SCOPE)
    exec(source, scope)
    f = scope["f"]
    args, numbers = (X, Y, 0.613), (0, 1, 2)
    expected = float(f(*args))
    calls = {
        "again": lambda: f(*args),
        "value": lambda: tg.value_and_grad(f, numbers)(*args)[0],
        "jvp": lambda: tg.jvp(f, numbers)(*args, np.ones(N), np.ones_like(Y), 1.0)[0],
        "vmap": lambda: tg.vmap(f)(*batches(args))[1],
    }
    gradients = {
        "grad": lambda: tg.grad(f, numbers)(*args),
        "jacfwd": lambda: tg.jacfwd(f, numbers)(*args),
        "vmap of grad": lambda: [g[1] for g in tg.vmap(tg.grad(f, numbers))(*batches(args))],
    }
    if recorded:
        calls["recorded"] = lambda: tg.jit(f)(*args)
        calls["recorded value"] = lambda: tg.value_and_grad(tg.jit(f), numbers)(*args)[0]
        gradients["recorded gradient"] = lambda: tg.grad(tg.jit(f), numbers)(*args)
        gradients["gradient, recorded"] = lambda: tg.jit(tg.grad(f, numbers))(*args)
    for name, call in calls.items():
        found = unless_refused(call)
        assert found is None or float(found) == pytest.approx(expected, rel=1e-12), name
    slope = slopes(f, args)
    for name, call in gradients.items():
        found = unless_refused(call)
        if found is not None:
            found = np.concatenate([np.ravel(g) for g in found])
            np.testing.assert_allclose(found, slope, rtol=2e-5, atol=1e-6, err_msg=name)


def slopes(f, args, step=1e-6):
    """Return the gradient of direct calls by differences, as one vector."""
    flat = np.concatenate([np.ravel(a) for a in args])

    def value(numbers):
        return float(f(numbers[:3], numbers[3:9].reshape(2, 3), float(numbers[9])))

    return np.array([(value(flat + e) - value(flat - e)) / (2 * step) for e in step * np.eye(10)])


@pytest.mark.filterwarnings("ignore:vmap.* item by item")
@pytest.mark.parametrize("seed", range(90))
def test_programs(seed):
    check(program(seed))


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:vmap.* item by item")
@pytest.mark.parametrize("seed", range(90))
def test_recorded_programs(seed):
    check(program(seed), recorded=True)


def tensors():
    """Return new arguments: programs may write to them."""
    return tg.tensor(X), tg.tensor(Y), tg.tensor(0.613)


@pytest.mark.compiled
@pytest.mark.parametrize("seed", range(90))
def test_recorded_programs_on_tensors(seed):
    scope = dict(SCOPE)
    exec(program(seed), scope)
    expected = scope["f"](*tensors()).item()
    found = unless_refused(lambda: tg.jit(scope["f"])(*tensors()))
    assert found is None or found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.filterwarnings("ignore:vmap.* item by item")
@pytest.mark.parametrize("seed", range(90))
def test_programs_on_tensors(seed):
    scope = dict(SCOPE)
    exec(program(seed), scope)
    f = scope["f"]
    expected = f(*tensors()).item()
    calls = {
        "recording": lambda: f(*(t.requires_grad_() for t in tensors())),
        "no_grad": lambda: tg.no_grad()(f)(*tensors()),
        "value": lambda: tg.value_and_grad(f, (0, 1, 2))(*tensors())[0],
        "vmap": lambda: tg.vmap(f)(*(tg.stack([t, t]) for t in tensors()))[1],
    }
    for name, call in calls.items():
        found = unless_refused(call)
        assert found is None or found.item() == pytest.approx(expected, rel=1e-12), name
