"""`vmap` beside a loop over the items, alone and with derivatives inside and outside of it."""

import copy
import pickle
import threading
import warnings
from collections import OrderedDict, namedtuple

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.eager import item_by_item
from tapegrad.eager.batched import BatchError

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


class TestAxes:
    @pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
    def test_of_arguments(self, axis):
        found = tg.vmap(lambda m: m @ m.T if m.shape[0] < m.shape[1] else m.T @ m, axis)(M)
        items = [np.take(M, k, axis) for k in range(M.shape[axis])]
        check(found, stacked([m @ m.T if m.shape[0] < m.shape[1] else m.T @ m for m in items]))

    @pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
    def test_of_results(self, axis):
        found = tg.vmap(lambda m: m * 2.0, 0, axis)(M)
        check(found, np.stack([m * 2.0 for m in M], axis))

    def test_of_containers(self):
        def f(pair, named):
            return {"sum": pair[0] * named["k"], "both": (pair[1], named["x"] + pair[0])}

        given = [(X, Y.T), {"k": Y[:, 0], "x": X[0]}]
        found = tg.vmap(f, ((0, 1), {"k": 0, "x": None}), {"sum": 1, "both": 0})(*given)
        check(found["sum"], (X * Y[:, :1]).T)
        check(found["both"][0], Y)
        check(found["both"][1], X[0] + X)
        shared = tg.vmap(f, (0, None))((X, X), {"k": 2.0, "x": X[0]})
        check(shared["sum"], 2.0 * X)

    def test_words_of_pytorch(self):
        found = tg.vmap(lambda x, k: x * k, in_dims=(1, None), out_dims=1)(X, 2.0)
        check(found, X * 2.0)

    def test_keyword_arguments_are_shared(self):
        check(tg.vmap(lambda x, *, k: x * k)(X, k=X[0]), X * X[0])

    def test_no_items(self):
        found = tg.vmap(lambda x: tg.sin(x).sum())(np.zeros((0, 3)))
        assert found.shape == (0,)

    def test_results_that_items_share(self):
        found, shared = tg.vmap(lambda x: (x, tg.ones(2)), out_axes=(0, None))(X)
        check(found, X)
        check(shared, np.ones(2))
        repeated = tg.vmap(lambda x: X[1])(X)
        check(repeated, np.stack([X[1]] * 4))
        repeated[0] = 0.0  # memory of its own
        check(tg.vmap(lambda x: 2.5)(X), np.full(4, 2.5))

    def test_results_do_not_share_memory_with_arguments(self):
        x = X.copy()
        for f in (lambda x: x, lambda x: x[::-1], lambda x: x.reshape(3, 1)):
            tg.vmap(f)(x)[...] = 0.0
        check(x, X)


class TestKinds:
    def test_tensors_give_tensors(self):
        x = tg.tensor(X, requires_grad=True)
        found = tg.vmap(lambda x: (x * x).sum())(x)
        assert isinstance(found, tg.Tensor)
        found.sum().backward()
        check(x.grad, 2.0 * X)

    def test_single_precision(self):
        found = tg.vmap(tg.grad(lambda x: (x * x).sum()))(X.astype(np.float32))
        assert found.dtype == np.float32

    def test_complex_numbers(self):
        z = X + 1j * Y
        found = tg.vmap(tg.grad(lambda z: tg.abs(z * z).sum()))(z)
        check(found, stacked([tg.grad(lambda z: tg.abs(z * z).sum())(row) for row in z]))

    def test_integers(self):
        n = np.arange(12).reshape(4, 3)
        check(tg.vmap(lambda n: n[::-1] * 2 + n.sum())(n), n[:, ::-1] * 2 + n.sum(axis=1)[:, None])

    def test_tensors_from_outside(self):
        w = tg.tensor(Y[0], requires_grad=True)
        tg.vmap(lambda x: (w * x).sum() ** 2)(X).sum().backward()
        check(w.grad, sum(2.0 * (Y[0] @ x) * x for x in X))

    def test_modes(self):
        x = tg.tensor(X, requires_grad=True)
        with tg.no_grad():
            assert not tg.vmap(lambda x: x * 2.0)(x).requires_grad
        with tg.inference_mode():
            found = tg.vmap(lambda x: tg.sin(x) * 2.0 + x[0])(x)
        check(found, np.sin(X) * 2.0 + X[:, :1])
        assert found.is_inference()
        with tg.inference_mode():
            check(tg.vmap(tg.grad(lambda x: (x**3).sum()))(X), 3.0 * X**2)

    def test_pickled(self):
        again = pickle.loads(pickle.dumps(tg.vmap(np.linalg.norm, 1, chunk_size=2)))
        check(again(X), np.linalg.norm(X, axis=0))
        assert repr(again).startswith("<_again of norm")

    def test_hooks_of_what_is_outside(self):
        seen = []
        x = tg.tensor(X, requires_grad=True)
        x.register_hook(lambda g: seen.append(g.shape))
        tg.vmap(lambda x: x.sum())(x).sum().backward()
        assert seen == [(4, 3)]


@pytest.fixture
def _new_warnings(monkeypatch):
    monkeypatch.setattr(item_by_item, "_warned", set())


@pytest.mark.usefixtures("_new_warnings")
class TestLoops:
    def test_op_without_a_rule(self):
        with pytest.warns(UserWarning, match=r"vmap: roots has no batching rule"):
            found = tg.vmap(tg.roots)(Y)
        check(np.sort(np.abs(found)), stacked([np.sort(np.abs(np.roots(y))) for y in Y]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tg.vmap(tg.roots)(Y)  # once

    def test_index_with_other_parts(self):
        place = np.array([0, 2, 1, 1])
        with pytest.warns(UserWarning, match=r"vmap: t\[index\] has no batching rule"):
            found = tg.vmap(lambda m, k: m[1:, k])(M, place)
        check(found, stacked([m[1:, k] for m, k in zip(M, place)]))
        check(tg.vmap(lambda m, k: m[:, k])(M, place), stacked([m[:, k] for m, k in zip(M, place)]))

    def test_compiled_function(self):
        @numba.njit
        def energy(x, k):
            total = 0.0
            for i in range(x.size):
                total += k * x[i] ** 3
            return total

        f = tg.njit(energy)
        with pytest.warns(UserWarning, match="vmap: energy has no batching rule"):
            found = tg.vmap(f, (0, None))(tg.tensor(X), 2.0)
        check(found, 2.0 * (X**3).sum(axis=1))
        check(tg.vmap(f, (0, None))(X, 2.0), 2.0 * (X**3).sum(axis=1))
        check(tg.vmap(tg.grad(lambda x: f(x, 2.0) * x[0]))(X),
              stacked([tg.grad(lambda x: f(x, 2.0) * x[0])(x) for x in X]))  # fmt: skip

    def test_rule_that_decides_by_its_cotangent(self):
        a = tg.tensor(M[0] @ M[0].T, requires_grad=True)
        seeds = np.stack([np.eye(3), M[1], 0.0 * M[1]])
        (found,) = tg.autograd.grad(
            tg.linalg.sqrtm(a), a, tg.tensor(seeds), is_grads_batched=True, retain_graph=True
        )
        for row, seed in zip(found, seeds):
            check(row, tg.autograd.grad(tg.linalg.sqrtm(a), a, tg.tensor(seed))[0])


def refuse(error, text, f, *args, **kwargs):
    with pytest.raises(error, match=text):
        tg.vmap(f, **kwargs)(*args)


def same(x):
    return x


class TestRefused:
    def test_axes_of_another_type(self):
        text = r"vmap\(same, in_dims=a, ...\)\(<inputs>\): expected `in_dims` to be int or"
        refuse(ValueError, text, same, X, in_axes="a")

    def test_no_inputs(self):
        refuse(ValueError, "got no inputs. Maybe you forgot to add inputs", same)

    def test_number_of_axes(self):
        refuse(ValueError, "in_dims is not compatible with the structure", same, X, in_axes=(0, 0))

    def test_axis_out_of_range(self):
        text = "Got in_dim=2 for some input, but that input is a Tensor of dimensionality 2 so"
        refuse(ValueError, text, same, X, in_axes=2)

    def test_numbers_have_no_axis(self):
        refuse(ValueError, "Got in_dim=0 for an input but the input is of type", same, 2.0)

    def test_nothing_to_map(self):
        refuse(ValueError, "at least one argument needs an axis", same, X, in_axes=(None,))

    def test_sizes_that_differ(self):
        text = (
            r"Expected all tensors to have the same size in the mapped dimension, got sizes \[4, "
        )
        refuse(ValueError, text, lambda x, y: x, X, X[:3])

    def test_results_that_are_no_tensors(self):
        refuse(ValueError, "must only return Tensors, got type <class 'str'>", lambda x: "a", X)

    def test_result_without_an_axis(self):
        refuse(ValueError, "it differs between the items", same, X, out_axes=None)

    def test_axis_of_a_result_out_of_range(self):
        refuse(ValueError, "out_dims has 3 for a result with 2 axes", same, X, out_axes=3)

    def test_structure_of_axes_of_results(self):
        refuse(ValueError, "do not match the structure", same, X, out_axes=(0, 0))

    def test_size_of_chunks(self):
        refuse(ValueError, "chunk_size should be None or greater than 0", same, X, chunk_size=0)

    @pytest.mark.parametrize(
        "f",
        [
            lambda x: x[0].item(),
            lambda x: float(x[0]),
            lambda x: int(x[0]),
            lambda x: x.numpy(),
            np.asarray,
            lambda x: x.tolist(),
            lambda x: np.linalg.matrix_rank(x),
            lambda x: np.zeros(3)[x],
        ],
    )
    def test_arrays_of_items(self, f):
        refuse(BatchError, "asks for the array of a batched tensor", f, X)

    def test_choices(self):
        refuse(BatchError, "use tapegrad.where", lambda x: x if x[0] > 0.5 else -x, X)
        refuse(BatchError, "use tapegrad.where", lambda x: max(x[0], x[1]), X)

    def test_shapes_that_would_differ(self):
        refuse(BatchError, "the shape of t.mask. would differ", lambda x: x[x > 0.5], X)
        refuse(BatchError, "nonzero of a batched tensor", lambda x: tg.nonzero(x > 0.5), X)

    @pytest.mark.parametrize("value", [lambda x: x[0], lambda x: X[0], lambda x: x[0, :2]])
    def test_several_values_at_a_mask(self, value):
        def f(x):
            y = x * 1.0
            y[y > 0.5] = value(x)
            return y

        items = np.array([[[0.9, 0.8, 0.7], [0.1, 0.2, 0.3]], [[0.1, 0.9, 0.2], [0.8, 0.4, 0.7]]])
        refuse(BatchError, r"t.mask. = value takes one number", f, items)

    def test_one_value_at_a_mask(self):
        def f(x):
            y = x * 1.0
            y[y > 0.5] = x[:1]
            return y

        check(tg.vmap(f)(X), stacked([f(x) for x in X]))

    def test_writes_to_what_items_share(self):
        def f(x):
            out = tg.zeros(3)
            out[0] = x[0]
            return out

        refuse(BatchError, "is not possible because a value that is written has more", f, X)
        refuse(BatchError, "is not possible", lambda x: tg.zeros(3).add_(x), X)
        y = tg.zeros(4)
        refuse(BatchError, "is not possible", lambda x: tg.vmap(lambda z: y.add_(z))(x), M)

    def test_writes_to_arguments(self):
        """The items of a batch are views of the argument, as a row of it would be."""
        x = tg.tensor(X.copy())
        tg.vmap(lambda row: row.mul_(2.0))(x)
        check(x, 2.0 * X)
        leaf = tg.tensor(X, requires_grad=True)
        refuse(RuntimeError, "a leaf Variable that requires grad", lambda x: x.mul_(2.0), leaf)

    @pytest.mark.parametrize(
        "f, text",
        [
            (lambda x: x.sum().backward(), r"backward\(\) called inside of vmap"),
            (lambda x: tg.autograd.backward(x.sum()), r"backward\(\) called inside of vmap"),
            (lambda x: x.requires_grad_(), "would be about all items at once"),
            (lambda x: x.register_hook(print), "has neither hooks"),
            (lambda x: x.retain_grad(), "has neither hooks"),
            (lambda x: x.grad, "has neither hooks"),
            (lambda x: x.grad_fn, "has neither hooks"),
            (lambda x: x.transpose_(0, 0), "cannot change in place"),
        ],
    )
    def test_what_belongs_to_all_items(self, f, text):
        refuse(BatchError, text, f, tg.tensor(X, requires_grad=True) * 1.0)

    def test_gradients_of_what_items_share(self):
        w = tg.tensor(Y[0], requires_grad=True)

        def f(x):
            return tg.autograd.grad((w * x).sum(), w)[0]

        refuse(BatchError, "input 0 is not batched, but what is differentiated is", f, X)

    def test_after_the_end(self):
        kept = []
        tg.vmap(lambda x: (kept.append(x), x)[1])(X)
        for use in (lambda x: x + 1.0, np.sin, lambda x: x[0], lambda x: x > 0, np.sum, float):
            with pytest.raises(BatchError, match="is used after the function has returned"):
                use(kept[0])

    def test_state_after_an_error(self):
        refuse(ZeroDivisionError, "by zero", lambda x: x * (1 // 0), X)
        check(tg.tensor(X) * 2.0, X * 2.0)
        assert tg.is_grad_enabled()
        (tg.tensor(X, requires_grad=True) * 1.0).sum().backward()


R = RNG.normal(size=(2, 3, 4))


class TestFound:
    """Programs that were wrong, or refused, in a draft."""

    @pytest.mark.parametrize(
        "f",
        [
            lambda a: tg.quantile(a, [0.1, 0.5], axis=1),
            lambda a: tg.percentile(a, [[10.0, 20.0]]),
            lambda a: tg.nanquantile(a, np.array([0.0, 1.0]), axis=0, keepdims=True),
            lambda a: sum(tg.gradient(a)),
            lambda a: tg.gradient(a, 0.5, 0.25)[1],
            lambda a: tg.nansum(a, axis=()),
            lambda a: tg.nanstd(a, axis=(0, -1)),
            lambda a: tg.median(a, axis=-1, keepdims=True),
            lambda a: tg.sort(a, axis=0),
            lambda a: tg.copysign(a, a[0]),
        ],
    )
    def test_composites_that_need_items(self, f):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            check(tg.vmap(f)(R), stacked([f(tg.tensor(r)) for r in R]))
            found = tg.vmap(tg.grad(lambda a: (f(a) ** 2).sum()))(R)
            check(found, stacked([tg.grad(lambda a: (f(a) ** 2).sum())(r) for r in R]))

    @pytest.mark.parametrize(
        "f",
        [
            lambda a: tg.any(a > 0.5, (0, 1)),
            lambda a: tg.all(a[0, 0] < 9.0, keepdims=True),
            lambda a: tg.argmax(a, axis=None, keepdims=True),
            lambda a: tg.count_nonzero(a > 0.0, axis=-1),
            lambda a: tg.argsort(a, axis=None),
            lambda a: np.argmin(a, axis=0),
            lambda a: np.isnan(a) | np.greater(R[0], a) | (R[0] > a),
            lambda a: tg.where(np.float64(0.1) < a, a, np.zeros_like(a)),
            lambda a: a * np.ndim(a) + np.shape(a)[1] + np.size(a),
        ],
    )
    def test_functions_without_derivatives(self, f):
        check(tg.vmap(f)(R), stacked([f(tg.tensor(r)) for r in R]))

    @pytest.mark.parametrize(
        "f",
        [
            lambda a: a * [1.0, 2.0, -1.0, 0.5],
            lambda a: [1.0, 2.0, -1.0, 0.5] + a[0],
            lambda a: a[:, :2] - [0.5, 1.0],  # as many as there are items
            lambda a: np.maximum([[0.1, 0.2, 0.9, 0.5]], a),
            lambda a: tg.where([True, False, True, True], a, (0.5, 1.0, 2.0, 3.0)),
            lambda a: tg.clip(a, [0.1, 0.2, 0.3, 0.4], 0.8) @ [1.0, 2.0, 3.0, 4.0],
            lambda a: tg.concatenate([a[0], [1.0, 2.0], [a[1, 1]]]),
            lambda a: (
                tg.einsum("ij,j", a, [1.0, 2.0, 3.0, 4.0]) + tg.vecdot([3.0, 1.0, 2.0, 0.5], a)
            ),
            lambda a: (a > [0.2, 0.5, 0.8, 0.1]) | tg.isclose([a[0, 0], 0.0, a[1, 2], 1.0], a),
            lambda a: tg.argmax([a[0, 0], 0.5, a[0, 1]]) + tg.any([a[0, 1] > 0.5, False]),
        ],
    )
    def test_lists(self, f):
        check(tg.vmap(f)(R), stacked([f(tg.tensor(r)) for r in R]))

    @pytest.mark.parametrize(
        "f",
        [
            lambda a: tg.argmax(a, axis=5),
            lambda a: tg.any(a > 0, axis=2),
            lambda a: tg.nansum(a, axis=2),
            lambda a: tg.sort(a, axis=-3),
            lambda a: tg.sum(a, axis=2),
        ],
    )
    def test_axes_that_do_not_exist(self, f):
        refuse(np.exceptions.AxisError, "out of bounds", f, R)

    @pytest.mark.parametrize(
        "f",
        [
            lambda a: a[0, 0] @ a[0],
            lambda a: a[0] @ a[0, 0],
            lambda a: a[0, 0] @ np.eye(3),
            lambda a: tg.solve(a, a[0, 0]),
            lambda a: tg.solve(a[0], a),
            lambda a: tg.solve_triangular(a, a[0, 0]),
            lambda a: tg.inv(a[0]),
            lambda a: tg.det(a[0]),
            lambda a: tg.linalg.slogdet(a[0])[1],
            lambda a: tg.cholesky(a[0] + np.eye(3)[0]),
            lambda a: tg.linalg.eigvalsh(a[0]),
            lambda a: tg.svdvals(a[0]),
            lambda a: tg.qr(a[0])[1],
            lambda a: tg.pinv(a[0]),
            lambda a: tg.linalg.expm(a[0]),
            lambda a: tg.matrix_transpose(a[0]),
        ],
    )
    def test_batch_of_vectors_is_no_matrix(self, f):
        items = M[:3]  # as many as there are elements in a row
        with pytest.raises(ValueError, match=r"."):
            f(tg.tensor(items[0]))
        with pytest.raises(ValueError, match=r"."):
            tg.vmap(f)(items)

    def test_no_items_without_values(self):
        assert tg.vmap(lambda a: tg.any(a > 0))(np.zeros((0, 3))).shape == (0,)

    def test_writes_that_do_not_fit_an_item(self):
        def whole(a):
            out = tg.zeros_like(a)
            out[...] = np.array([10.0, 20.0, 30.0])
            return out

        def row(a):
            out = tg.zeros_like(a)
            out[0] = np.arange(8.0).reshape(2, 4)
            return out

        refuse(ValueError, "could not broadcast input array", whole, np.arange(3.0))
        refuse(ValueError, "could not broadcast input array", row, R)
        refuse(ValueError, "could not broadcast", lambda a: tg.full_like(a, np.ones(3)), X[:3, 0])
        named = lambda a: tg.full_like(a, fill_value=np.ones(3))  # noqa: E731
        refuse(ValueError, "could not broadcast", named, X[:3, 0])
        with tg.no_grad():
            check(tg.zeros_like(a=tg.tensor(X)), 0.0 * X)
        values = tg.tensor([1.0, 2.0, 3.0])
        text = "could not broadcast input array"
        refuse(ValueError, text, lambda a: tg.zeros_like(a).copy_(values), np.arange(3.0))

    def test_writes(self):
        def f(a):
            out = a * 1.0
            out[()] = a * 2.0
            out[1:, None] = np.ones((1, 1, 1, 4))
            out[tg.argmax(a[:, 0]), [0, 1]] = -1.0
            np.add(out, a, out=out)
            return out

        check(tg.vmap(f)(R), stacked([f(tg.tensor(r)) for r in R]))
        found = tg.vmap(tg.grad(lambda a: (f(a) ** 2).sum()))(R)
        check(found, stacked([tg.grad(lambda a: (f(a) ** 2).sum())(r) for r in R]))
        z = tg.vmap(lambda a: _with_parts(a))(R)
        check(z, stacked([_with_parts(tg.tensor(r)) for r in R]))

    def test_gradient_of_an_argument_is_of_its_own_uses(self):
        x = tg.tensor(X, requires_grad=True)

        def f(a):
            return tg.autograd.grad(tg.sum(a * a) + tg.sum(x), a, retain_graph=True)[0]

        def h(a, b):
            return tg.autograd.grad(tg.sum(a * b), (a,), retain_graph=True)[0]

        for options in ({}, {"chunk_size": 2}):
            check(tg.vmap(f, **options)(x), 2.0 * X)
            check(tg.vmap(h, **options)(x, x), X)

    def test_undefined_gradients_of_some_items(self):
        class Skips(tg.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2.0

            @staticmethod
            def backward(ctx, g):
                return None if float(g.sum()) == 0.0 else g * 2.0

        x = tg.tensor(np.ones(2), requires_grad=True)
        y = Skips.apply(x)

        def product(g):
            return tg.autograd.grad(y, x, g, retain_graph=True, materialize_grads=True)[0]

        for seeds in ([[0.0, 0.0], [1.0, 2.0]], [[1.0, 2.0], [0.0, 0.0]]):
            check(tg.vmap(product)(np.array(seeds)), 2.0 * np.array(seeds))

    def test_axes_of_containers(self):
        square = np.array([[1.0, 2.0], [3.0, 4.0]])
        unsorted = OrderedDict(z=0, a=1)
        found = tg.vmap(lambda d: d["a"] * 1.0, (unsorted,))(OrderedDict(z=square, a=square))
        check(found, square.T)
        results = tg.vmap(lambda r: OrderedDict(z=r, a=r * 10.0), out_axes=unsorted)(square)
        check(results["z"], square)
        check(results["a"], 10.0 * square.T)
        mixed = tg.vmap(lambda d: d[2] + d["a"], ({2: 0, "a": 0},))({2: X, "a": X})
        check(mixed, 2.0 * X)
        pair = namedtuple("pair", "z a")
        check(
            tg.vmap(lambda p: p.z * p.a[:3], (pair(0, 1),))(pair(X, M[:, :, 0].T)), X * M[:, :, 0]
        )
        check(tg.vmap(np.sin, np.int64(0))(X), np.sin(X))
        refuse(ValueError, "the axes have keys", same, {"a": X}, in_axes=({"b": 0},))
        refuse(ValueError, "1 axes for 2 values", same, [X, X], in_axes=([0],))

    def test_results_do_not_share_memory_with_what_is_outside(self):
        w = np.arange(4.0)
        _, found = tg.vmap(lambda a: (a, w), out_axes=(0, None))(X)
        assert not np.shares_memory(found, w)
        found = tg.vmap(lambda a, k: k, out_axes=None)(X, k=w)
        assert not np.shares_memory(found, w)

    def test_copies(self):
        check(tg.vmap(copy.deepcopy)(X), X)
        check(tg.vmap(tg.tensor)(X), X)
        refuse(
            TypeError,
            "arange of a tensor that is batched has no values",
            lambda a: tg.arange(0.0, a),
            X[0],
        )


def _with_parts(a):
    z = a + 0.0j
    z.real = a * 2.0
    z.imag += 1.0
    return z


class TestManyCotangents:
    """Jacobians and `is_grads_batched`, which batch the passes."""

    def test_results_have_memory_of_their_own(self):
        x, y = (tg.tensor(np.arange(3.0), requires_grad=True) for _ in range(2))
        seeds = tg.tensor(np.ones((4, 3)))
        one, two = tg.autograd.grad(x + y, (x, y), seeds, is_grads_batched=True)
        one *= 0.0
        check(two, np.ones((4, 3)))
        check(seeds, np.ones((4, 3)))
        first, second = tg.jacobian(lambda a, b: a + b, (0, 1))(np.ones(3), np.ones(3))
        first[...] = 7.0
        check(second, np.eye(3))
        zeros = tg.jacobian(lambda a, b: a * 2.0, (0, 1))(np.ones(3), np.ones(3))[1]
        zeros[0, 0] = 1.0

    def test_masked_cotangents(self):
        x = tg.tensor(np.ones(3), requires_grad=True)
        masked_seeds = np.ma.masked_array(np.ones((2, 3)), mask=True)
        with pytest.raises(TypeError, match="tensors have no masks"):
            tg.autograd.grad(x * 2.0, x, masked_seeds, is_grads_batched=True)
        refuse(
            TypeError,
            "tensors have no masks",
            lambda r: tg.vjp(lambda u: u * 2.0, r)[1](masked_seeds[0])[0],
            X,
        )
        refuse(
            TypeError,
            "tensors have no masks",
            lambda r: tg.autograd.grad(r * 2.0, r, masked_seeds[0])[0],
            tg.tensor(X, requires_grad=True),
        )

    def test_dtype(self):
        f = lambda a: tg.astype(tg.concatenate([a, a, a]), np.float64)  # noqa: E731
        for transform in (tg.jacobian, tg.jacrev, tg.jacfwd):
            assert transform(f)(np.ones(2, np.float32)).dtype == np.float32

    @pytest.mark.filterwarnings("ignore:Anomaly Detection")
    @pytest.mark.filterwarnings("ignore:Error detected")
    def test_anomaly_mode(self):
        with tg.autograd.detect_anomaly():
            check(tg.jacobian(tg.sin)(X[0]), np.diag(np.cos(X[0])))
            check(tg.hessian(lambda x: tg.sin(x).sum())(X[0]), -np.diag(np.sin(X[0])))
            check(tg.vmap(tg.jacobian(tg.sin))(X), stacked([np.diag(np.cos(x)) for x in X]))
            with pytest.raises(RuntimeError, match="returned nan values"):
                tg.jacobian(lambda x: tg.sqrt(x * 0.0) * 0.0)(np.zeros(3))

    def test_retained_gradients(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        y.retain_grad()
        (found,) = tg.autograd.grad(y * 1.0, x, tg.tensor(np.eye(2)), is_grads_batched=True)
        check(found, np.diag([2.0, 4.0]))
        assert y.grad is not None


def test_threads():
    """A batch belongs to its thread."""
    errors = []

    def batches():
        try:
            for _ in range(50):
                check(tg.vmap(tg.grad(lambda x: (x**3).sum()))(X), 3.0 * X**2)
        except Exception as error:
            errors.append(error)

    def plain_work():
        try:
            for _ in range(200):
                x = tg.tensor(X, requires_grad=True)
                (x * x).sum().backward()
                check(x.grad, 2.0 * X)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for work in (batches, plain_work, batches)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_modes_that_outlive_a_batch():
    kept = []

    def items(a):
        with tg.no_grad():
            yield a.sum()
            yield a.max()

    def first(a):
        kept.append(items(a))
        return next(kept[0])

    tg.vmap(first)(X)
    kept[0].close()
    x = tg.tensor(X, requires_grad=True)
    (x * x).sum().backward()
    check(x.grad, 2.0 * X)
    check(tg.grad(lambda a: tg.sum(a * a))(X), 2.0 * X)


@pytest.mark.filterwarnings("ignore:vmap:UserWarning")
@pytest.mark.parametrize("axis", [0, -1, None])
@pytest.mark.parametrize(
    "name",
    ["sum", "max", "cumsum", "cumprod", "any", "argmax", "argsort", "count_nonzero", "nansum"],
)
def test_axes_of_items_without_axes(name, axis):
    """NumPy has an axis 0 there, in reductions and cumulative sums; it is not that of the batch."""
    function = getattr(tg, name)
    x = np.array([1.0, 0.0, 4.0])
    expected = np.stack([np.asarray(function(tg.tensor(item), axis=axis)) for item in x])
    check(tg.vmap(lambda item: function(item, axis=axis))(x), expected)
    if name in ("sum", "max", "cumsum", "cumprod", "nansum"):
        check(
            tg.grad(lambda x: tg.sum(tg.vmap(lambda q: function(q, axis=axis))(x)))(x), np.ones(3)
        )


@pytest.mark.parametrize("write", ["item", "sum"])
def test_writes_of_items_to_arrays(write):
    def f(x):
        z = np.zeros(3)
        z[0] = x[0] if write == "item" else x.sum()
        return z

    with pytest.raises(tg.BatchError, match="asks for the array of a batched tensor"):
        tg.vmap(f)(np.ones((2, 3)))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: tg.compress(x > 3.0, x),
        lambda x: tg.extract(x > 3.0, x),
        lambda x: tg.repeat(x, tg.where(x > 3.0, 2, 1)),
    ],
)
@pytest.mark.filterwarnings("ignore:vmap")
def test_items_with_results_of_different_shapes(f):
    with pytest.raises(ValueError, match="results of different shapes for the items"):
        tg.vmap(f)(np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(
    "function",
    [
        lambda a: tg.linspace(a[0], 1.0, 4),
        lambda a: np.linspace(0.0, a[1], 3),
        lambda a: tg.linspace(a, 2.0 * a, 4, axis=-1),
        lambda a: np.full_like(a, 0.7) * a,
        lambda a: np.full_like(a, fill_value=0.7, dtype=np.float32),
    ],
)
def test_makers_of_batched_values(function):
    xs = np.array([[0.3, -1.0], [2.0, 0.5], [-0.7, 0.1]])
    found = tg.vmap(function)(xs)
    expected = np.stack([np.asarray(function(x)) for x in xs])
    np.testing.assert_allclose(found, expected)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(tg.jit(function)(xs[0]), expected[0])
