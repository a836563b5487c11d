"""Arrays that are made of items, in direct calls and in transforms."""

import numpy as np
import pytest

import tapegrad as tg

MAKERS = {
    "array": tg.array,
    "asarray": tg.asarray,
    "asarray of single precision": lambda data: tg.asarray(data, dtype=np.float32),
    "stack": tg.stack,
}
FUNCTIONS = {
    "list": lambda make, x: tg.sum(make([x[0], x[1] * 2.0]) ** 2),
    "item": lambda make, x: make([x[0], x[1] * 2.0])[0] * x[1],
    "array": lambda make, x: tg.sum(make(x) ** 2),
    "constant": lambda make, x: tg.sum(make([1.0, 2.0]) * x),
}
NESTED = {
    "nested": lambda make, x: tg.sum(make([[x[0], 1.0], [2.0, x[1]]]) ** 2),
}
CASES = [
    *((maker, name) for maker in MAKERS for name in FUNCTIONS),
    *((maker, name) for maker in MAKERS for name in NESTED if maker != "stack"),
]
A = np.array([1.5, 2.5])


@pytest.mark.parametrize(("maker", "name"), CASES)
def test_transforms_agree(maker, name):
    make, function = MAKERS[maker], {**FUNCTIONS, **NESTED}[name]

    def f(x):
        return function(make, x)

    value, steps = float(f(A)), 1e-2 * np.eye(2)
    slopes = [(float(f(A + step)) - float(f(A - step))) / 2e-2 for step in steps]
    tolerance = 1e-4 if "single" in maker else 1e-9
    batch = np.stack([A, A])
    x = tg.tensor(A, requires_grad=True)
    f(x).backward()
    for found, expected in [
        (tg.jit(f)(A), value),
        (tg.vmap(f)(batch), [value, value]),
        (tg.vmap(tg.jit(f))(batch), [value, value]),
        (x.grad, slopes),
        (tg.grad(f)(A), slopes),
        (tg.grad(tg.jit(f))(A), slopes),
        (tg.vmap(tg.grad(f))(batch), [slopes, slopes]),
        (tg.jvp(f)(A, np.ones(2))[1], sum(slopes)),
    ]:
        np.testing.assert_allclose(np.asarray(found), expected, rtol=tolerance)
