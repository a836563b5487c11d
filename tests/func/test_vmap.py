"""`vmap` beside a loop over the items, alone and with derivatives inside and outside of it."""

import warnings

import numpy as np
import pytest

import tapegrad as tg

RNG = np.random.default_rng(5)
X = RNG.uniform(0.3, 1.4, (4, 3))
Y = RNG.uniform(-0.9, 0.9, (4, 3))
M = RNG.normal(size=(4, 3, 3)) + 3.0 * np.eye(3)


def in_place(x, y):
    out = tg.zeros_like(x * y)
    out[0] = x[1] * y[0]
    out[1:] += tg.sin(x[1:])
    out *= y
    out.T[0] = x.sum()
    return out


def masked(x, y):
    out = x + 0.0 * y
    out[y > 0.0] = 0.5
    out[y < -0.5] = x.sum()
    return out * x


def by_place(x, y):
    order = tg.argsort(y)
    best = tg.argmax(x)
    return tg.take(x, order) * x[best] + x[order] * y[np.array([0, 2, 0])]


def put_by_place(x, y):
    out = 0.0 * x + y
    out[tg.argmin(y)] = x[0] * x[1]
    out[tg.argsort(x)[:2]] += x[:2]
    return out


def loops(x, y):
    state = x
    for k in range(3):
        state = tg.where(state > 0.5, state * y + 0.1 * k, tg.exp(-state)) + x[k]
    return state


def containers(x, y):
    rows = [x, y, x * y]
    table = tg.stack(rows)
    return table.T @ table + tg.concatenate([x, y])[1:4] + tg.array([x[0], y[1], 2.0])


def linear_algebra(x, y):
    a = tg.outer(x, x) + 3.0 * tg.eye(3)
    return tg.linalg.solve(a, y) + tg.linalg.det(a) + tg.linalg.inv(a) @ x + tg.linalg.norm(y)


FUNCTIONS = {
    "arithmetic": lambda x, y: (x * y + 2.0) / (1.0 + x**2) - 0.5 * y,
    "elementwise": lambda x, y: tg.sin(x) * tg.sigmoid(y) + tg.special.erf(x) + tg.arctan2(y, x),
    "comparisons": lambda x, y: tg.where((x > y) & (y < 0.5), x * x, y) + tg.maximum(x, y),
    "reductions": lambda x, y: x.sum() * y + x.max() + tg.mean(y) + tg.prod(x) + tg.std(y),
    "products": lambda x, y: tg.outer(x, y) @ x + x @ y + tg.einsum("i,j->ji", x, y)[0],
    "views": lambda x, y: x[::-1] * y[None, :, None].reshape(3) + x[1:].sum() + y.T[2],
    "numpy": lambda x, y: np.cumsum(x) + np.sort(y) + np.diff(x, append=1.0) + np.dot(x, y),
    "fourier": lambda x, y: tg.abs(tg.fft.fft(x)) * y + tg.real(tg.fft.rfft(y)).sum(),
    "constants": lambda x, y: x * np.arange(3.0) + np.ones((2, 1)) * y,
    "independent": lambda x, y: tg.tensor([1.0, 2.0, 3.0]) + 0.0 * x,
    "transforms": lambda x, y: tg.grad(lambda u: (tg.sin(u) * y).sum())(x) + x,
    "vjp": lambda x, y: tg.vjp(lambda u: u * u * y, x)[1](y)[0],
    "jvp": lambda x, y: tg.jvp(lambda u: u * u * y)(x, y)[1],
    "jacobian": lambda x, y: tg.jacobian(lambda u: u * u.sum())(x) @ y,
    "tall": lambda x, y: tg.jacobian(lambda u: tg.outer(u, u * y).ravel().repeat(2))(x).sum(axis=0),
    "forward": lambda x, y: tg.jacfwd(lambda u: u * u.sum() * y)(x) @ y,
    "hvp": lambda x, y: tg.hvp(lambda u: (u**3 * y).sum())(x, y),
    "nested": lambda x, y: tg.vmap(lambda a: (a * y).sum() * x)(tg.outer(x, y)).sum(axis=0),
    "nested_grad": lambda x, y: tg.vmap(tg.grad(lambda a, b: (a * b * x).sum()), (0, None))(
        tg.outer(x, y), y
    )[1],
    "in_place": in_place,
    "masked": masked,
    "by_place": by_place,
    "put_by_place": put_by_place,
    "loops": loops,
    "containers": containers,
    "linear_algebra": linear_algebra,
}


@pytest.fixture(params=FUNCTIONS)
def f(request):
    return FUNCTIONS[request.param]


def one_number(f):
    return lambda x, y: (f(x, y) * np.cos(np.arange(3.0))).sum()


def check(found, expected):
    found, expected = (
        v.detach().numpy() if isinstance(v, tg.Tensor) else v for v in (found, expected)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)


def stacked(values):
    return np.stack([v.detach().numpy() if isinstance(v, tg.Tensor) else v for v in values])


class TestBesideALoop:
    def test_values(self, f):
        found = tg.vmap(f)(X, Y)
        assert isinstance(found, np.ndarray)
        check(found, stacked([f(tg.tensor(x), tg.tensor(y)) for x, y in zip(X, Y)]))

    def test_gradients_of_the_items(self, f):
        gradients = tg.vmap(tg.grad(one_number(f), (0, 1)))(X, Y)
        expected = [tg.grad(one_number(f), (0, 1))(x, y) for x, y in zip(X, Y)]
        for k in range(2):
            check(gradients[k], stacked([pair[k] for pair in expected]))

    def test_gradient_of_the_batch(self, f):
        weights = np.array([1.0, -2.0, 0.5, 3.0])
        found = tg.grad(lambda x, y: (tg.vmap(one_number(f))(x, y) * weights).sum(), (0, 1))(X, Y)
        expected = [tg.grad(one_number(f), (0, 1))(x, y) for x, y in zip(X, Y)]
        for k in range(2):
            check(found[k], weights[:, None] * stacked([pair[k] for pair in expected]))

    def test_shared_argument(self, f):
        found = tg.vmap(tg.grad(one_number(f), (0, 1)), in_axes=(None, 0))(X[0], Y)
        expected = [tg.grad(one_number(f), (0, 1))(X[0], y) for y in Y]
        for k in range(2):
            check(found[k], stacked([pair[k] for pair in expected]))

    def test_tangents(self, f):
        _, tangents = tg.vmap(tg.jvp(f, (0, 1)))(X, Y, Y, X)
        expected = [tg.jvp(f, (0, 1))(x, y, y, x)[1] for x, y in zip(X, Y)]
        check(tangents, stacked(expected))
        _, outside = tg.jvp(tg.vmap(f), (0, 1))(X, Y, Y, X)
        check(outside, stacked(expected))

    def test_second_order(self, f):
        found = tg.vmap(tg.hessian(one_number(f)))(X, Y)
        expected = stacked([tg.hessian(one_number(f))(x, y) for x, y in zip(X, Y)])
        check(found, expected)
        whole = tg.hessian(lambda x: tg.vmap(one_number(f))(x, Y).sum())(X)
        for k in range(4):
            check(whole[k, :, k], expected[k])

    def test_jacobians(self, f):
        expected = stacked([tg.jacobian(f)(x, y) for x, y in zip(X, Y)])
        for transform in (tg.jacobian, tg.jacrev, tg.jacfwd):
            check(tg.vmap(transform(f))(X, Y), expected)
        outside = tg.jacobian(tg.vmap(f))(X, Y)
        for k in range(4):
            check(outside[k, ..., k, :], expected[k])

    def test_two_levels(self, f):
        found = tg.vmap(lambda x: tg.vmap(lambda y: f(x, y))(Y))(X)
        expected = [[f(tg.tensor(x), tg.tensor(y)) for y in Y] for x in X]
        check(found, np.stack([stacked(row) for row in expected]))
        gradients = tg.vmap(lambda x: tg.vmap(lambda y: tg.grad(one_number(f))(x, y))(Y))(X)
        rows = [[tg.grad(one_number(f))(x, y) for y in Y] for x in X]
        check(gradients, np.stack([stacked(row) for row in rows]))

    def test_chunks(self, f):
        check(tg.vmap(f, chunk_size=3)(X, Y), tg.vmap(f)(X, Y))


@pytest.fixture(autouse=True)
def _quiet_where_independent():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.DetachedWarning)
        yield
