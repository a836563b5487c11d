"""`autograd.functional`: products, Jacobians and Hessians, beside differences and transforms."""

import numpy as np
import pytest
from functions import Cube, values
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import functional, grad

X = np.array([0.3, -0.7, 1.1])
Y = np.array([[0.5, 0.2, -0.4], [1.5, 0.1, 0.9]])
V = np.array([1.0, -2.0, 0.5])
W = np.array([[0.2, 0.4, -1.0], [0.3, -0.6, 0.7]])


def energy(x, y):
    return tg.sum(tg.sin(y @ x) * x[0]) + tg.sum(y * y * x)


def rows(x, y):
    return tg.exp(y * x).sum(axis=1), x[:2] * y[0, 0]


def tensors(*arrays):
    return tuple(map(tg.tensor, arrays))


def differences(f, arrays, k, h=1e-3):
    """The Jacobian of the outputs, in one matrix, with respect to an array; of eighth order."""
    columns = []
    for unit in np.eye(arrays[k].size).reshape(-1, *arrays[k].shape):

        def at(step, unit=unit):
            moved = [a + step * unit if j == k else a for j, a in enumerate(arrays)]
            found = f(*tensors(*moved))
            found = found if isinstance(found, tuple) else (found,)
            return np.concatenate([np.ravel(values(t)) for t in found])

        near = [at(n * h) - at(-n * h) for n in (1, 2, 3, 4)]
        columns.append((672 * near[0] - 168 * near[1] + 32 * near[2] - 3 * near[3]) / (840 * h))
    return np.stack(columns, axis=1)


def gradients(x, y):
    return tg.grad(energy, (0, 1))(x, y)


FORMS = [
    {},
    {"create_graph": True},
    {"strict": True},
    {"vectorize": True},
    {"vectorize": True, "strategy": "forward-mode"},
]


@pytest.mark.parametrize("options", FORMS)
def test_jacobian(options):
    found = functional.jacobian(rows, tensors(X, Y), **options)
    for k, array in enumerate((X, Y)):
        blocks = [values(row[k]) for row in found]
        assert [b.shape for b in blocks] == [(2, *array.shape)] * 2
        joined = np.concatenate([b.reshape(2, -1) for b in blocks])
        np.testing.assert_allclose(joined, differences(rows, (X, Y), k), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("options", FORMS)
def test_hessian(options):
    options = dict(options)
    if "strategy" in options:
        options["outer_jacobian_strategy"] = options.pop("strategy")
    found = functional.hessian(energy, tensors(X, Y), **options)
    for j, one in enumerate((X, Y)):
        for k, two in enumerate((X, Y)):
            assert found[j][k].shape == (*one.shape, *two.shape)
    for k, array in enumerate((X, Y)):
        joined = np.concatenate([values(row[k]).reshape(-1, array.size) for row in found])
        np.testing.assert_allclose(joined, differences(gradients, (X, Y), k), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", FORMS[:3])
def test_products(options):
    inputs, vectors = tensors(X, Y), tensors(V, W)
    jacobian = np.concatenate([differences(rows, (X, Y), k) for k in range(2)], axis=1)
    hessian = np.concatenate([differences(gradients, (X, Y), k) for k in range(2)], axis=1)
    v = np.concatenate([V, W.ravel()])
    u = np.array([0.7, -0.1, 2.0, 0.4])

    def close(found, expected):
        joined = np.concatenate([np.ravel(values(t)) for t in found])
        np.testing.assert_allclose(joined, expected, rtol=1e-9, atol=1e-10)

    outputs, found = functional.jvp(rows, inputs, vectors, **options)
    close(found, jacobian @ v)
    close(outputs, np.concatenate([values(z) for z in rows(*inputs)]))
    _, found = functional.vjp(rows, inputs, tensors(u[:2], u[2:]), **options)
    close(found, u @ jacobian)
    for product in (functional.hvp, functional.vhp):
        value, found = product(energy, inputs, vectors, **options)
        close(found, hessian @ v)
        assert value.item() == energy(*inputs).item()


@pytest.mark.parametrize("name", ["vjp", "jvp", "jacobian", "hessian", "hvp", "vhp"])
def test_history_only_where_it_is_wanted(name):
    def cubes(x):
        return (x**3).sum()

    x = leaf([1.0, 2.0])
    v = () if name in ("jacobian", "hessian", "vjp") else (tg.ones(2),)
    for create_graph in (False, True):
        found = getattr(functional, name)(cubes, x, *v, create_graph=create_graph)
        for t in found if isinstance(found, tuple) else (found,):
            assert t.requires_grad is create_graph
    assert x.grad is None


def test_third_derivatives():
    x = leaf(X)
    for found in (
        functional.hessian(lambda t: (t**4).sum(), x, create_graph=True).sum(),
        functional.hvp(lambda t: (t**4).sum(), x, tg.ones(3), create_graph=True)[1].sum(),
        functional.vhp(lambda t: (t**4).sum(), x, tg.ones(3), create_graph=True)[1].sum(),
    ):
        (g,) = grad(found, x)
        np.testing.assert_allclose(g, 24 * X, rtol=1e-12)


def test_functions_of_users():
    inputs = tensors(X)[0]
    found = functional.hessian(lambda t: Cube.apply(t).sum(), inputs)
    np.testing.assert_allclose(found, np.diag(6 * X), rtol=1e-12)


def test_inputs_are_left_alone():
    x = leaf(X)
    seen = []

    def remembering(t):
        seen.append(t)
        return t * t

    functional.jacobian(remembering, x)
    assert seen[0] is not x
    assert seen[0].grad_fn is None
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        functional.jacobian(lambda t: t.mul_(2.0), x)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        functional.jacobian(lambda t: t.mul_(2.0), x, create_graph=True)
    np.testing.assert_array_equal(values(x), X)


def test_shapes():
    for shape in [(), (1,), (0,), (2, 0), (1, 2)]:
        x = tg.ones(shape)
        for options in FORMS[:2] + FORMS[3:]:
            found = functional.jacobian(lambda t: t * 3.0, x, **options)
            size = x.size
            assert found.shape == shape * 2
            np.testing.assert_array_equal(values(found).reshape(size, size), 3.0 * np.eye(size))


def test_dtypes():
    x = tg.ones(2, dtype=np.float32)
    assert functional.jacobian(lambda t: t * t, x).dtype == np.float32
    assert functional.hessian(lambda t: (t**3).sum(), x).dtype == np.float32
    assert functional.jvp(lambda t: t * t, x, x)[1].dtype == np.float32
    with pytest.raises(RuntimeError, match="Only Tensors of floating point"):
        functional.jacobian(lambda t: t * 2.0, tg.tensor([1, 2]))


def test_columns_of_complex_numbers_are_refused_by_rows():
    z = tg.tensor([1 + 1j, 2.0])
    with pytest.raises(RuntimeError, match="only for real scalar outputs but got complex128"):
        functional.jacobian(lambda t: t * t, z)
    found = functional.jacobian(lambda t: t * t, z, vectorize=True, strategy="forward-mode")
    np.testing.assert_array_equal(values(found), np.diag([2 + 2j, 4.0]))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda x: functional.vjp(lambda a, b: (a * a).sum(), (x, x), strict=True),
            "The output of the user-provided function is independent of input 1",
        ),
        (
            lambda x: functional.jvp(lambda a, b: (a * a).sum(), (x, x), (x, x), strict=True),
            "The output of the user-provided function is independent of input 1",
        ),
        (
            lambda x: functional.jacobian(lambda a, b: b * b, (x, x), strict=True),
            "Output 0 of the user-provided function is independent of input 0",
        ),
        (
            lambda x: functional.hessian(lambda a: a.sum(), x, strict=True),
            "found that the jacobian of the user-provided function with respect to input 0",
        ),
        (
            lambda x: functional.vhp(lambda a: a.sum(), x, x, strict=True),
            "found that the jacobian of the user-provided function with respect to input 0",
        ),
        (
            lambda x: functional.hvp(lambda a: (a * a).sum(), x, x, create_graph=True, strict=True),
            "The hessian of the user-provided function is independent of input 0",
        ),
        (
            lambda x: functional.vjp(lambda a: a.detach(), x, x, strict=True),
            "Output 0 of the user-provided function does not require gradients",
        ),
    ],
)
def test_independence_is_an_error_in_strict_mode(call, text):
    with pytest.raises(RuntimeError, match=text):
        call(tg.tensor(X))


def test_independence_is_zero_otherwise():
    x, y = tensors(X, Y)
    np.testing.assert_array_equal(functional.jacobian(lambda a, b: a * a, (x, y))[1], 0.0)
    assert functional.hessian(lambda a, b: a.sum(), (x, y))[1][0].shape == (2, 3, 3)
    _, found = functional.vjp(lambda a, b: a.sum(), (x, y))
    np.testing.assert_array_equal(found[1], np.zeros((2, 3)))
    _, found = functional.jvp(lambda a: tg.ones(2), x, x)
    np.testing.assert_array_equal(found, [0.0, 0.0])


@pytest.mark.parametrize("context", [tg.no_grad, tg.inference_mode])
def test_recorded_whatever_the_mode(context):
    x = tg.tensor(X)
    with context():
        np.testing.assert_array_equal(functional.jacobian(lambda t: t * t, x), np.diag(2 * X))
        hessian = functional.hessian(lambda t: (t * t).sum(), x, create_graph=True)
        np.testing.assert_array_equal(hessian.detach(), 2.0 * np.eye(3))
        np.testing.assert_array_equal(functional.vjp(lambda t: t * t, x, x)[1], 2 * X * X)


@pytest.mark.parametrize("name", ["vjp", "jvp", "hvp", "vhp"])
def test_vectors_are_complex_where_what_they_belong_to_is(name):
    x, z = tg.tensor(X), tg.tensor(X + 1j)
    f = (lambda t: t * t) if name in ("vjp", "jvp") else (lambda t: (t * t).real.sum())
    for inputs, v in ((x, z), (z, x)):
        with pytest.raises(RuntimeError, match="for complex Tensors, both are required"):
            getattr(functional, name)(f, inputs, v)
