"""Lists that hold tensors: they are one tensor, with its history."""

import numpy as np
import pytest

import tapegrad as tg

POINT = np.array([1.2, 0.7])


def through(f, *, point=POINT):
    """Gradient of a function of two numbers, beside differences."""

    def loss(x):
        return tg.sum(f(x[0], x[1]) * 1.0)

    x = tg.tensor(point, requires_grad=True)
    loss(x).backward()
    steps = 1e-6 * np.eye(2)
    wanted = [
        (loss(tg.tensor(point + h)) - loss(tg.tensor(point - h))).item() / 2e-6 for h in steps
    ]
    np.testing.assert_allclose(x.grad.numpy(), wanted, 1e-8, 1e-8)


def stored(a, b):
    z = tg.zeros(2)
    z[:] = [a, b * b]
    return z


def copied(a, b):
    z = tg.zeros((2, 2))
    z[...] = [[a, b], [1.0, a * b]]
    return z


def into(a, b):
    z = tg.zeros(2)
    np.copyto(z, [a, b * b])
    return z


FUNCTIONS = {
    "array": lambda a, b: tg.array([a, b * b]),
    "asarray": lambda a, b: tg.asarray([[a, b], (b * a, 1.0)]),
    "tensor": lambda a, b: tg.tensor([a, b, 2.0]),
    "as_tensor": lambda a, b: tg.as_tensor((a, b * b)),
    "dtype": lambda a, b: tg.array([a, b * b], np.float64),
    "sum": lambda a, b: tg.sum([a, b * b]),
    "max": lambda a, b: tg.max([a, b * b]),
    "min": lambda a, b: tg.min([a, b * b]),
    "mean": lambda a, b: tg.mean([a, b * b]),
    "logsumexp": lambda a, b: tg.logsumexp([a, b * b]),
    "concatenate": lambda a, b: tg.concatenate([[a, 1.0], [b * b]]),
    "stack": lambda a, b: tg.stack([[a, 1.0], [2.0, b * b]]),
    "stack of a list and a tensor": lambda a, b: tg.stack([[a, 1.0], tg.stack([b, a * b])]),
    "hstack": lambda a, b: tg.hstack([[a, 1.0], [b * b]]),
    "vstack": lambda a, b: tg.vstack([[a, 1.0], [2.0, b * b]]),
    "dstack": lambda a, b: tg.dstack([[a, 1.0], [2.0, b * b]]),
    "column_stack": lambda a, b: tg.column_stack([[a, 1.0], [2.0, b * b]]),
    "block": lambda a, b: tg.block([[tg.stack([a, b]), 1.0], [2.0, 3.0, b * b]]),
    "append": lambda a, b: tg.append([a, 1.0], b * b),
    "exp": lambda a, b: tg.exp([a, b * b]),
    "sigmoid": lambda a, b: tg.sigmoid([[a, 1.0], [2.0, b * b]]),
    "multiply": lambda a, b: tg.multiply([a, b * b], (b, 2.0)),
    "erf": lambda a, b: tg.special.erf([a, b * b]),
    "full": lambda a, b: tg.full((3, 2), [a, b * b]),
    "full_like": lambda a, b: tg.full_like(np.ones((3, 2)), [a, b * b]),
    "linspace": lambda a, b: tg.linspace([a, 1.0], [2.0, b * b], 3),
    "copyto": into,
    "inv": lambda a, b: tg.linalg.inv([[a, 0.5], [0.1, b]]),
    "det": lambda a, b: tg.linalg.det([[a, 0.5], [a * b, b]]),
    "matmul": lambda a, b: tg.matmul([a, b * b], np.array([0.3, 0.2])),
    "reshape": lambda a, b: tg.reshape([a, b * b], (2, 1)),
    "numpy.stack": lambda a, b: np.stack([a, b * b]),
    "an assignment": stored,
    "an assignment of rows": copied,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient(name):
    through(FUNCTIONS[name])


@pytest.mark.parametrize(
    ("name", "call", "way_out"),
    [
        (
            "logspace",
            lambda x: tg.logspace(0.5, x, 3),
            lambda x: 10.0 ** tg.linspace(0.5, x, 3),
        ),
        ("arange", lambda x: tg.arange(0.0, 3.0, x), lambda x: 0.0 + x * tg.arange(3)),
    ],
)
def test_makers_of_constants(name, call, way_out):
    """They would lose the history: refused, and the way out has the same values."""
    x = tg.tensor(1.2, requires_grad=True)
    with pytest.raises(TypeError, match=f"{name} of a tensor that requires grad.*write"):
        call(x)
    np.testing.assert_allclose(way_out(x).detach().numpy(), call(x.detach()).numpy(), 1e-15)
    assert tg.grad(lambda v: tg.sum(way_out(v)))(1.2).item() != 0.0


def test_makers_refuse_lists_of_recorded_tensors():
    x = tg.tensor(POINT, requires_grad=True)
    with pytest.raises(TypeError, match="logspace of a tensor that requires grad"):
        tg.logspace(0.5, [x[0], x[1]], 3)


def test_what_is_not_recorded_stays_as_it_was():
    assert not tg.array([tg.tensor(1.0), 2.0]).requires_grad
    assert not tg.tensor([[1, 2], [3, 4]]).requires_grad
    x = tg.tensor(POINT, requires_grad=True)
    with tg.no_grad():
        assert tg.array([x[0], 1.0]).grad_fn is None
        leaf = tg.tensor([x[0], 1.0], requires_grad=True)
    assert leaf.requires_grad
    assert leaf.is_leaf


SECOND_ARGUMENTS = {
    "append": lambda a, b: tg.append(tg.ones(2), [a, b * b]),
    "append nested": lambda a, b: tg.append([[a, b]], [[b * b, a]], axis=0),
    "append flattened": lambda a, b: tg.append(tg.ones(2), [[a, b * b], [b, 1.0]]),
    "append by name": lambda a, b: tg.append(tg.ones(2), values=[a, b * b]),
    "insert": lambda a, b: tg.insert(tg.ones(2), 1, [a, b * b]),
    "kron": lambda a, b: tg.kron(tg.ones(2), [a, b * b]),
    "dot": lambda a, b: tg.dot(tg.ones(2), [a, b * b]),
    "inner": lambda a, b: tg.inner([a, b], [a, b * b]),
    "cross": lambda a, b: tg.cross(np.arange(3.0), [a, b * b, 1.0]),
    "convolve": lambda a, b: tg.convolve(np.arange(3.0), [a, b * b]),
    "tensordot": lambda a, b: tg.tensordot(np.arange(2.0), [a, b * b], 1),
    "polyval": lambda a, b: tg.polyval([1.0, 2.0, 3.0], [a, b * b]),
    "interp": lambda a, b: tg.interp([0.3, 0.6], [0.0, 1.0], [a, b * b]),
    "einsum": lambda a, b: tg.einsum("i,j", np.arange(1.0, 3.0), [a, b * b]),
    "meshgrid": lambda a, b: tg.meshgrid([1.0, 2.0], [a, b * b])[1],
    # lists of arrays of different shapes
    "select": lambda a, b: tg.select([[True, False]], [[a, b * b]], b),
    "choose": lambda a, b: tg.choose(np.array([0, 1, 1]), [a, tg.ones(3) * b]),
    "piecewise": lambda a, b: tg.piecewise(tg.stack([a, b]), [[True, False]], [a, b * b]),
}


@pytest.mark.parametrize("name", SECOND_ARGUMENTS)
def test_second_arguments(name):
    through(SECOND_ARGUMENTS[name])


@pytest.mark.parametrize("name", ["append", "dot", "interp", "select", "einsum"])
def test_second_arguments_in_recorded_functions(name):
    def loss(x):
        return tg.sum(SECOND_ARGUMENTS[name](x[0], x[1]) ** 2)

    found = tg.grad(tg.jit(loss))(POINT)
    np.testing.assert_allclose(found, tg.grad(loss)(POINT), rtol=1e-12)


@pytest.mark.parametrize("name", ["concatenate", "stack", "vstack", "hstack", "dstack"])
def test_one_array_is_the_list_of_its_rows(name):
    function, x = getattr(tg, name), np.arange(8.0).reshape(2, 2, 2)
    items = np.stack([function(tg.tensor(item)).numpy() for item in x])
    np.testing.assert_array_equal(items[0], getattr(np, name)(list(x[0])))
    np.testing.assert_array_equal(tg.vmap(function)(x), items)
    np.testing.assert_array_equal(tg.jit(function)(x[0]), items[0])
    weights = np.arange(float(items[0].size)).reshape(items[0].shape)
    slope = tg.grad(lambda x: tg.sum(function(list(x)) * weights))(x[0])
    for loss in (
        lambda x: tg.sum(function(x) * weights),
        tg.jit(lambda x: (function(x) * weights).sum()),
    ):
        np.testing.assert_array_equal(tg.grad(loss)(x[0]), slope)


@pytest.mark.compiled
@pytest.mark.parametrize("join", [tg.concatenate, tg.hstack])
@pytest.mark.parametrize(
    "others", [lambda x: [1.0], lambda x: (x[0], 2.0), lambda x: [[1.0], x][0]]
)
def test_lists_among_joined_arrays_in_nested_transforms(join, others):
    x, t = np.array([1.0, 2.0]), np.array([3.0, 5.0])

    def f(x):
        return tg.sum(join([others(x), x]) ** 3)

    expected = tg.hessian(f)(x)
    np.testing.assert_allclose(tg.hvp(tg.jit(f))(x, t), expected @ t)
    np.testing.assert_allclose(tg.hessian(tg.jit(f))(x), expected)
    np.testing.assert_allclose(tg.jit(tg.grad(f))(x), tg.grad(f)(x))
    np.testing.assert_allclose(tg.jvp(tg.jit(f))(x, t)[1], tg.grad(f)(x) @ t)
