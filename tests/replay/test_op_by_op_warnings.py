"""What is said of recorded functions that run op by op, in whole or in part."""

import functools
import pickle
import warnings

import numpy as np
import pytest
from interpreted import interpret

import tapegrad as tg

X = np.array([0.5, -1.0, 2.0])


def doubled(x):
    x *= 2.0
    return x


def with_eigenvalues(x):
    y = np.sin(x) + 1.0
    values = np.linalg.eig(y * y[:, None] + np.eye(3))[0]
    return tg.sum(abs(values) * y)


def masked(x):
    return tg.sum(x[x > 0.0])


def single(x):
    return abs(x.astype(np.complex64))


class Twice(tg.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, g):
        return g * 2.0


def with_function(x):
    return tg.sum(np.sin(Twice.apply(np.cos(x) * x)))


def only_function(x):
    return Twice.apply(x)


def with_random_numbers(x):
    return tg.sum(np.sin(x) * tg.random.normal(size=3))


def all_compiled(x):
    return tg.sum(np.exp(x) * x)


SLOW = {
    doubled: r"<jitted doubled> runs op by op: line \d+ of test_op.*.py, `x \*= 2.0`, ",
    single: "line .* `return abs.x.astype.np.complex64..`, astype has dtype complex64",
    with_eigenvalues: "computes op by op: eig in line .* `values = .*` .*several results",
}
QUICK = (with_function, only_function, with_random_numbers, all_compiled)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    interpret(monkeypatch)


@pytest.mark.parametrize("f", SLOW)
def test_warnings_name_the_line_once(f):
    jitted = tg.jit(f)
    with pytest.warns(tg.OpByOpWarning, match=SLOW[f]) as issued:
        [jitted(x) for x in (X.copy(), X.copy(), np.ones(3))]
    assert len(issued) == 1
    assert issued[0].filename == __file__
    assert jitted.cache_info().op_by_op == 1


@pytest.mark.parametrize("f", SLOW)
def test_strict(f):
    strict = tg.jit(f, strict=True)
    for call in (strict, pickle.loads(pickle.dumps(strict)), tg.jit(tg.jit(f), strict=True)):
        with pytest.raises(tg.RecordingError, match=SLOW[f]):
            call(X.copy())
    assert "op by op" in strict.inspect(X.copy()) or "in Python: eig" in strict.inspect(X.copy())


def with_bessel_functions(x):
    return tg.sum(np.sin(tg.special.jv(1.5, x * x + 1.0)))


def test_functions_without_a_compiled_form_are_named():
    """Also where compiled code calls them, so that there is one region."""
    jitted, match = (
        tg.jit(with_bessel_functions),
        r"computes op by op: special\.jv in line .*jv\(1.5",
    )
    with pytest.warns(tg.OpByOpWarning, match=match) as issued:
        [jitted(x) for x in (X, X, np.ones(3))]
    assert len(issued) == 1
    assert jitted.cache_info().op_by_op == 1
    with pytest.raises(tg.RecordingError, match=match):
        tg.jit(with_bessel_functions, strict=True)(X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.trapezoid(x * x, x),
        lambda x: np.sum(np.gradient(x * x, x)),
        lambda x: np.sum(np.unwrap(7.0 * x) ** 2),
        lambda x: np.nanmean(x) + np.nanstd(x),
    ],
)
def test_what_composites_are_made_of_is_compiled(function):
    jitted = tg.jit(function, strict=True)
    np.testing.assert_allclose(jitted(X), function(X), rtol=1e-13)


def test_strict_transforms():
    strict = tg.jit(with_eigenvalues, strict=True)
    for transform in (tg.grad, tg.value_and_grad, tg.hessian):
        with pytest.raises(tg.RecordingError, match="strict=True"):
            transform(strict)(X)
    with pytest.raises(tg.RecordingError, match="strict=True"):
        tg.vmap(strict)(np.stack([X, X + 1.0]))


@pytest.mark.parametrize("f", QUICK)
@pytest.mark.parametrize("strict", [False, True])
def test_what_is_python_by_nature_is_not_meant(f, strict):
    jitted = tg.jit(f, strict=strict)
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        jitted(X)
        jitted(X)
    assert [w for w in issued if w.category is tg.OpByOpWarning] == []
    assert jitted.cache_info().op_by_op == 0


def test_partial_functions_have_short_names():
    assert repr(tg.jit(functools.partial(functools.partial(masked), X))) == "<jitted masked>"


def test_other_shapes_later():
    jitted, strict = tg.jit(masked), tg.jit(masked, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jitted(X) == strict(X) == 2.5
    with pytest.warns(tg.OpByOpWarning, match="the shape of what nonzero returns"):
        assert jitted(-X) == 1.0
    with pytest.raises(tg.RecordingError, match="the shape of what nonzero returns"):
        strict(-X)
