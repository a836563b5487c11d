"""Transforms of functions: grad, value_and_grad, vjp, jacobian, hessian, hvp and their nesting."""

import builtins
import gc
import inspect
import threading

import numpy as np
import pytest
from differences import M, V, numeric_jacobian, values
from scipy import optimize

import tapegrad as tg
from tapegrad.func import grad, hessian, hvp, jacobian, value_and_grad, vjp

CALLS = {
    "grad": lambda x: grad(lambda x: tg.sin(x).sum())(x),
    "value_and_grad": lambda x: value_and_grad(lambda x: tg.sin(x).sum())(x),
    "vjp": lambda x: vjp(tg.sin, x)[1](x),
    "jvp": lambda x: tg.jvp(tg.sin)(x, x),
    "linearize": lambda x: tg.linearize(tg.sin, x)[1](x),
    "jacobian": lambda x: jacobian(tg.sin)(x),
    "jacfwd": lambda x: tg.jacfwd(tg.sin)(x),
    "hessian": lambda x: hessian(lambda x: tg.sin(x).sum())(x),
    "hvp": lambda x: hvp(lambda x: tg.sin(x).sum())(x, x),
    "vmap": lambda x: tg.vmap(lambda x: {"y": tg.sin(x) * 2.0})(x),
    "vmap of grad": lambda x: tg.vmap(grad(lambda x: tg.sin(x) * x))(x),
    "grad of vmap": lambda x: grad(lambda x: tg.vmap(tg.sin)(x).sum())(x),
    "nested": lambda x: grad(grad(lambda x: tg.sin(x).sum() ** 2), 0)(x[0]),
    "functional": lambda x: tg.autograd.functional.hessian(lambda x: tg.sin(x).sum(), tg.tensor(x)),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_reference_cycles(name):
    CALLS[name](V)
    gc.collect()
    gc.disable()
    try:
        CALLS[name](V)
        assert gc.collect() == 0
    finally:
        gc.enable()


# -- grad and value_and_grad ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [np.asarray, tg.tensor, lambda a: tg.tensor(a, requires_grad=True)],
    ids=["array", "tensor", "leaf"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_grad(make, dtype):
    x = make(V.astype(dtype))
    g = grad(lambda x: tg.sum(x**3))(x)
    assert type(g) is type(x)
    assert g.dtype == dtype
    np.testing.assert_allclose(values(g), 3 * V**2, rtol=1e-6)


@pytest.mark.parametrize("number", [2.0, np.float64(2.0), np.float32(2.0)])
def test_grad_at_numbers(number):
    g = grad(lambda x: x * x)(number)
    assert g.shape == ()
    assert g.item() == 4.0


@pytest.mark.parametrize("number", [2, True, np.int64(2), np.array([1, 2])])
@pytest.mark.parametrize("transform", [grad, value_and_grad, jacobian, hessian])
def test_integers_are_refused(transform, number):
    with pytest.raises(TypeError, match=r"argument 0 has dtype .*floating point"):
        transform(lambda x: (x * x).sum())(number)


def test_grad_does_not_touch_the_argument():
    x = tg.tensor(V, requires_grad=True)
    array = V.copy()
    grad(lambda x: tg.sum(x**2))(x)
    grad(lambda x: tg.sum(x**2))(array)
    assert x.grad is None
    np.testing.assert_array_equal(array, V)


def test_value_and_grad():
    value, g = value_and_grad(lambda x: tg.sum(x**2))(V)
    assert value.item() == pytest.approx((V**2).sum())
    assert isinstance(value, np.float64)
    assert isinstance(g, np.ndarray)
    np.testing.assert_array_equal(g, 2 * V)


@pytest.mark.parametrize(
    ("argnums", "expected"),
    [
        (0, 6.0),
        (1, 3.0),
        (2, 2.0),
        (-1, 2.0),
        (-3, 6.0),
        ((0,), (6.0,)),
        ((0, 2), (6.0, 2.0)),
        ([2, 0], (2.0, 6.0)),
        ((-1, 1), (2.0, 3.0)),
    ],
)
def test_argnums(argnums, expected):
    def f(x, y, z):
        return x * y * z

    found = grad(f, argnums)(1.0, 2.0, 3.0)
    if isinstance(expected, tuple):
        assert type(found) is tuple
        assert [g.item() for g in found] == pytest.approx(
            [{0: 6.0, 1: 3.0, 2: 2.0}[n % 3] for n in argnums]
        )
    else:
        assert found.item() == expected
    assert value_and_grad(f, argnums)(1.0, 2.0, 3.0)[0].item() == 6.0


@pytest.mark.parametrize("number", [np.int64(1), np.int32(1), np.uint8(1)])
@pytest.mark.parametrize("compiled", [False, True])
def test_argnums_are_integers_of_numpy(number, compiled):
    def f(x, y):
        return x * y**3

    g = tg.njit(f) if compiled else f
    assert float(grad(g, number)(2.0, 3.0)) == 54.0
    assert [*map(float, grad(g, (number, 0))(2.0, 3.0))] == [54.0, 27.0]
    assert float(value_and_grad(g, number)(2.0, 3.0)[1]) == 54.0
    assert float(tg.jvp(g, number)(2.0, 3.0, 1.0)[1]) == 54.0
    assert float(tg.hvp(g, number)(2.0, 3.0, 1.0)) == 36.0
    assert float(tg.grad(tg.jit(f), number)(2.0, 3.0)) == 54.0
    if not compiled:
        assert float(tg.jacobian(g, number)(2.0, 3.0)) == 54.0
        assert float(tg.hessian(g, number)(2.0, 3.0)) == 36.0
    assert [*map(float, grad(g, np.array([0, 1]))(2.0, 3.0))] == [27.0, 54.0]


@pytest.mark.parametrize("argnums", [3, -4, (0, 5)])
def test_argnums_out_of_range(argnums):
    with pytest.raises(ValueError, match="argnums"):
        grad(lambda x, y, z: x * y * z, argnums)(1.0, 2.0, 3.0)


def test_other_arguments_are_passed_as_they_are():
    seen = []

    def f(x, n, *, flag, data):
        seen.append((n, flag, data))
        return x * n

    assert grad(f)(2.0, 3, flag="a", data=[1]).item() == 3.0
    assert seen == [(3, "a", [1])]


def test_keyword_arguments_are_not_differentiated():
    g = grad(lambda x, scale=1.0: tg.sum(x * scale))(V, scale=tg.tensor(3.0))
    np.testing.assert_array_equal(values(g), 3.0)


def test_has_aux():
    def f(x):
        return tg.sum(x**2), {"mine": x * 2, "n": 3}

    g, aux = grad(f, has_aux=True)(V)
    np.testing.assert_array_equal(values(g), 2 * V)
    assert aux["n"] == 3
    (value, aux), g = value_and_grad(f, has_aux=True)(V)
    assert value.item() == pytest.approx((V**2).sum())
    np.testing.assert_array_equal(values(aux["mine"]), 2 * V)
    j, aux = jacobian(lambda x: (x**2, "aux"), has_aux=True)(V)
    np.testing.assert_array_equal(values(j), np.diag(2 * V))
    assert aux == "aux"
    h, aux = hessian(f, has_aux=True)(V)
    np.testing.assert_array_equal(values(h), 2 * np.eye(3))
    value, pullback, aux = vjp(lambda x: (x**2, "aux"), V, has_aux=True)
    assert aux == "aux"
    np.testing.assert_array_equal(values(pullback(np.ones(3))[0]), 2 * V)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_aux_has_no_history(dtype):
    def f(x):
        return tg.sum(x**2), {"mine": x * 2}

    x = V.astype(dtype)
    for transform in (grad, value_and_grad, jacobian):
        for found in (
            transform(tg.jit(f), has_aux=True)(x),
            tg.jit(transform(f, has_aux=True))(x),
        ):
            aux = found[0][1] if transform is value_and_grad else found[1]
            assert type(aux["mine"]) is np.ndarray
            np.testing.assert_array_equal(aux["mine"], 2 * x)
        found = transform(f, has_aux=True)(tg.tensor(x))
        aux = found[0][1] if transform is value_and_grad else found[1]
        assert not aux["mine"].requires_grad


def test_names_and_documentation_are_kept():
    def mine(x):
        """Mine."""
        return x * x

    for transform in (grad, value_and_grad, jacobian, hessian, hvp):
        wrapped = transform(mine)
        assert wrapped.__name__ == "mine"
        assert wrapped.__doc__ == "Mine."
        assert inspect.unwrap(wrapped) is mine


def test_same_names_at_the_top():
    assert tg.grad is grad
    assert tg.value_and_grad is value_and_grad
    assert tg.vjp is vjp
    assert tg.jacobian is jacobian
    assert tg.hessian is hessian
    assert tg.hvp is hvp


# -- pytrees --------------------------------------------------------------------------------------


def test_dict_argument():
    pytest.importorskip("optree")
    parameters = {"w": M, "b": np.array([0.1, 0.2])}
    g = grad(lambda p: tg.sum((p["w"] @ V + p["b"]) ** 2))(parameters)
    assert set(g) == {"w", "b"}
    r = 2 * (M @ V + parameters["b"])
    np.testing.assert_allclose(values(g["w"]), np.outer(r, V))
    np.testing.assert_allclose(values(g["b"]), r)


def test_nested_argument():
    pytest.importorskip("optree")
    tree = {"a": [np.array(1.0), (np.array(2.0), 3.0)], "b": np.array([4.0, 5.0])}
    value, g = value_and_grad(
        lambda t: t["a"][0] * t["a"][1][0] * t["a"][1][1] + tg.sum(t["b"] ** 2)
    )(tree)
    assert value.item() == 6.0 + 41.0
    assert g["a"][0].item() == 6.0
    assert isinstance(g["a"][1], tuple)
    assert [t.item() for t in g["a"][1]] == [3.0, 2.0]
    np.testing.assert_array_equal(values(g["b"]), [8.0, 10.0])


def test_none_and_empty_trees():
    pytest.importorskip("optree")
    g = grad(lambda t: t["x"] * 2)({"x": 1.0, "none": None, "empty": []})
    assert g["x"].item() == 2.0
    assert g["none"] is None
    assert g["empty"] == []


def test_several_trees():
    pytest.importorskip("optree")
    g, h = grad(lambda a, b: a[0] * b["x"], (0, 1))([2.0], {"x": 3.0})
    assert g[0].item() == 3.0
    assert h["x"].item() == 2.0


def test_vjp_of_trees():
    pytest.importorskip("optree")
    value, pullback = vjp(
        lambda p: {"s": p["x"] ** 2, "t": (p["x"] * p["y"],)}, {"x": V, "y": 2 * V}
    )
    np.testing.assert_array_equal(values(value["s"]), V**2)
    (g,) = pullback({"s": np.ones(3), "t": (np.full(3, 10.0),)})
    np.testing.assert_allclose(values(g["x"]), 2 * V + 10 * 2 * V)
    np.testing.assert_allclose(values(g["y"]), 10 * V)


def test_hvp_of_trees():
    pytest.importorskip("optree")
    found = hvp(lambda p: p["x"] ** 2 * p["y"])({"x": 2.0, "y": 3.0}, {"x": 1.0, "y": 10.0})
    assert found["x"].item() == 2 * 3.0 + 2 * 2.0 * 10
    assert found["y"].item() == 2 * 2.0


def test_jacobian_of_a_tree():
    pytest.importorskip("optree")
    found = jacobian(lambda p: p["x"] * p["s"])({"x": V, "s": 2.0})
    np.testing.assert_array_equal(values(found["x"]), 2 * np.eye(3))
    np.testing.assert_array_equal(values(found["s"]), V)


def test_integer_in_a_tree_is_refused():
    pytest.importorskip("optree")
    with pytest.raises(TypeError, match=r"argument 0\['n'\] has dtype int64"):
        grad(lambda p: p["x"] * p["n"])({"x": 2.0, "n": 3})


def test_without_optree(monkeypatch):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "optree":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'tapegrad\[pytree\]'"):
        grad(lambda p: p["x"])({"x": 2.0})
    assert grad(lambda x: x * x)(2.0).item() == 4.0
    np.testing.assert_array_equal(values(jacobian(lambda x: x * 2)(V)), 2 * np.eye(3))


# -- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [grad, value_and_grad, hessian])
def test_results_that_are_not_scalar(transform):
    with pytest.raises(ValueError, match=r"returned shape \[3\]; expected a scalar"):
        transform(lambda x: x * 2)(V)


@pytest.mark.parametrize("wrap", [lambda f: f, tg.jit], ids=["tensors", "jit"])
def test_hvp_with_the_arguments_of_scipy(wrap):
    """SciPy gives the vector second: refused where the shapes tell, with what to write."""

    def loss(w, x, y):
        return tg.mean((x @ w - y) ** 2)

    x, y = np.arange(10.0).reshape(5, 2), np.ones(5)
    product = tg.hvp(wrap(loss))
    with pytest.raises(ValueError, match=r"shape \[5\], and the argument \[2\].*\(x, \*args, p\)"):
        product(np.zeros(2), np.ones(2), x, y)
    found = optimize.minimize(
        tg.value_and_grad(loss),
        np.zeros(2),
        (x, y),
        "trust-ncg",
        jac=True,
        hessp=lambda w, p, *args: product(w, *args, p),
    )
    np.testing.assert_allclose(found.x, np.linalg.lstsq(x, y)[0], atol=1e-6)


def test_hvp_of_a_result_that_is_not_scalar():
    with pytest.raises(ValueError, match="expected a scalar"):
        hvp(lambda x: x * 2)(V, V)


@pytest.mark.parametrize("result", ["a", None, [1.0], {"a": 1}])
def test_results_that_are_no_arrays(result):
    with pytest.raises(TypeError, match="grad: the function returned a"):
        grad(lambda x: result)(V)


@pytest.mark.parametrize("result", [1.0, 2, np.array(3.0), tg.tensor(4.0)])
def test_functions_that_ignore_their_argument(result):
    with pytest.warns(tg.DetachedWarning, match="grad: the result does not depend on"):
        g = grad(lambda x: result)(V)
    np.testing.assert_array_equal(values(g), np.zeros(3))
    with pytest.warns(tg.DetachedWarning, match="jacobian: the result does not depend on"):
        np.testing.assert_array_equal(values(jacobian(lambda x: result)(V)), np.zeros(3))
    np.testing.assert_array_equal(values(hessian(lambda x: result)(V)), np.zeros((3, 3)))
    with pytest.warns(tg.DetachedWarning, match="vjp: the result does not depend on"):
        _value, pullback = vjp(lambda x: result, V)
    np.testing.assert_array_equal(values(pullback(np.array(1.0))[0]), np.zeros(3))
    with pytest.warns(tg.DetachedWarning, match="hvp: the result does not depend on"):
        np.testing.assert_array_equal(values(hvp(lambda x: result)(V, V)), np.zeros(3))


def test_one_ignored_argument():
    g, h = grad(lambda x, y: tg.sum(x**2), (0, 1))(V, M.astype(np.float32))
    np.testing.assert_array_equal(values(g), 2 * V)
    np.testing.assert_array_equal(values(h), np.zeros((2, 3)))
    assert h.dtype == np.float32


def test_linear_function_has_zero_hessian():
    np.testing.assert_array_equal(values(hessian(lambda x: tg.sum(x) * 3)(V)), np.zeros((3, 3)))
    np.testing.assert_array_equal(values(grad(grad(lambda x: x * 3))(2.0)), 0.0)
    np.testing.assert_array_equal(values(hvp(lambda x: tg.sum(x))(V, V)), np.zeros(3))


def test_argument_returned_as_it_is():
    assert grad(lambda x: x)(2.0).item() == 1.0
    np.testing.assert_array_equal(values(jacobian(lambda x: x)(V)), np.eye(3))
    value, pullback = vjp(lambda x: x, V)
    np.testing.assert_array_equal(pullback(V)[0], V)
    np.testing.assert_array_equal(value, V)
    assert not np.shares_memory(value, V)
    assert not np.shares_memory(vjp(lambda x: x[1:], V)[0], V)


def test_one_element_of_any_rank_is_a_scalar():
    np.testing.assert_array_equal(values(grad(lambda x: x[:1] * 2)(V)), [2.0, 0.0, 0.0])


def test_errors_in_the_function_come_through():
    with pytest.raises(KeyError, match="mine"):
        grad(lambda x: {}["mine"])(V)
    assert tg.is_grad_enabled()


# -- vjp ------------------------------------------------------------------------------------------


def test_vjp():
    value, pullback = vjp(lambda x, y: x * tg.sin(y), V, 2 * V)
    np.testing.assert_allclose(values(value), V * np.sin(2 * V))
    for _ in range(2):
        gx, gy = pullback(np.array([1.0, 10.0, 100.0]))
        np.testing.assert_allclose(values(gx), np.sin(2 * V) * [1, 10, 100])
        np.testing.assert_allclose(values(gy), V * np.cos(2 * V) * [1, 10, 100])


def test_vjp_of_several_results():
    pytest.importorskip("optree")
    value, pullback = vjp(lambda x: (x * 2, tg.sum(x)), V)
    assert type(value) is tuple
    (g,) = pullback((V, 5.0))
    np.testing.assert_allclose(values(g), 2 * V + 5)


def test_vjp_cotangents_are_checked():
    _, pullback = vjp(lambda x: x * 2, V)
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        pullback(np.ones(4))
    pytest.importorskip("optree")
    _, pullback = vjp(lambda x: (x * 2, x * 3), V)
    with pytest.raises(ValueError, match="1 cotangents for 2 results"):
        pullback((V,))


def test_vjp_is_differentiable_by_the_cotangent():
    _, pullback = vjp(tg.sin, V)
    u = tg.tensor(V, requires_grad=True)
    (g,) = pullback(u)
    g.sum().backward()
    np.testing.assert_allclose(values(u.grad), np.cos(V))


# -- hessian ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda x: tg.sum(x**3), np.diag(6 * V)),
        (lambda x: x[0] * x[1] ** 2, [[0, 3.0, 0], [3.0, 1.0, 0], [0, 0, 0]]),
        (lambda x: tg.sum(x) ** 2, np.full((3, 3), 2.0)),
        (lambda x: x @ np.arange(9.0).reshape(3, 3) @ x, [[0, 4, 8], [4, 8, 12], [8, 12, 16]]),
    ],
)
def test_hessian(f, expected):
    found = hessian(f)(V)
    np.testing.assert_allclose(values(found), expected, atol=1e-12)


def test_hessian_of_a_matrix_and_of_a_number():
    assert hessian(lambda x: tg.sum(x**3))(M).shape == (2, 3, 2, 3)
    assert hessian(lambda x: x**3)(2.0).item() == 12.0
    found = hessian(lambda a, x: a * tg.sum(x**2), 1)(3.0, V)
    np.testing.assert_array_equal(values(found), 6 * np.eye(3))


def test_hessian_by_several_arguments_is_refused():
    with pytest.raises(TypeError, match="hessian: argnums must be one integer"):
        hessian(lambda x, y: x * y, (0, 1))


def test_hvp():
    v = np.array([1.0, -2.0, 0.5])
    found = hvp(lambda x: tg.sum(x**3) + x[0] * x[1])(V, v)
    np.testing.assert_allclose(values(found), 6 * V * v + [v[1], v[0], 0])
    found = hvp(lambda a, x: a * tg.sum(x**2), 1)(3.0, V, v)
    np.testing.assert_array_equal(values(found), 6 * v)


def test_hvp_wrong_vector():
    with pytest.raises(ValueError, match=r"the vector has shape \[4\], and the argument \[3\]"):
        hvp(lambda x: tg.sum(x**3))(V, np.ones(4))
    with pytest.raises(ValueError, match="another structure than the argument; the vector is the"):
        hvp(lambda p, x: tg.sum(p["a"] * x))({"a": V}, {"a": V}, V)


# -- arrays and numbers, or tensors ---------------------------------------------------------------


def square_sum(x, y=0.0):
    return tg.sum(x * x) + y


EVERY = {
    "grad": lambda x: grad(square_sum)(x),
    "value_and_grad": lambda x: value_and_grad(square_sum)(x),
    "vjp": lambda x: (lambda value, pull: (value, pull(value * 0 + 1)))(*vjp(square_sum, x)),
    "jacobian": lambda x: jacobian(lambda x: x * x)(x),
    "hessian": lambda x: hessian(square_sum)(x),
    "hvp": lambda x: hvp(square_sum)(x, x),
    "jvp": lambda x: tg.jvp(square_sum)(x, x),
    "several arguments": lambda x: grad(square_sum, argnums=(0, 1))(x, 2.0),
}


def leaves(found):
    return (
        [leaf for part in found for leaf in leaves(part)] if isinstance(found, tuple) else [found]
    )


@pytest.mark.parametrize("transform", EVERY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_and_numbers_give_arrays_and_numbers(transform, dtype):
    for x in (V.astype(dtype), dtype(1.5), np.array(1.5, dtype)):
        for found in leaves(EVERY[transform](x)):
            assert isinstance(found, np.ndarray if np.ndim(found) else np.floating)
    for found in leaves(EVERY[transform](1.5)):
        assert isinstance(found, np.float64)
    for x in (tg.tensor(V.astype(dtype)), tg.tensor(V.astype(dtype), requires_grad=True)):
        for found in leaves(EVERY[transform](x)):
            assert isinstance(found, tg.Tensor)
            assert not found.requires_grad or x.requires_grad


@pytest.mark.parametrize("transform", EVERY)
def test_values_are_the_same_for_arrays_and_tensors(transform):
    plain, tensors = leaves(EVERY[transform](V)), leaves(EVERY[transform](tg.tensor(V)))
    for one, two in zip(plain, tensors, strict=True):
        np.testing.assert_array_equal(one, two.numpy())


def test_a_tensor_anywhere_gives_tensors():
    t = tg.tensor(2.0)
    assert isinstance(grad(square_sum)(V, t), tg.Tensor)
    assert isinstance(grad(square_sum)(V, y=t), tg.Tensor)
    assert isinstance(vjp(square_sum, V)[1](t)[0], tg.Tensor)
    assert isinstance(vjp(square_sum, V)[1](2.0)[0], np.ndarray)
    assert isinstance(hvp(square_sum)(V, tg.tensor(V)), tg.Tensor)
    assert isinstance(tg.jvp(square_sum)(V, tg.tensor(V))[1], tg.Tensor)
    assert isinstance(grad(lambda x: square_sum(x["a"]) + x["b"])({"a": V, "b": t})["a"], tg.Tensor)


def test_containers_and_what_comes_along_are_plain():
    def f(p):
        y = p["a"] * p["b"][0]
        return tg.sum(y), {"y": y, "label": "name", "more": (y[0], [1, y])}

    (value, aux), found = value_and_grad(f, has_aux=True)({"a": V, "b": (2.0,)})
    assert isinstance(value, np.float64)
    assert isinstance(found["a"], np.ndarray)
    assert isinstance(found["b"][0], np.float64)
    assert isinstance(aux["y"], np.ndarray)
    assert isinstance(aux["more"][0], np.float64)
    assert isinstance(aux["more"][1][1], np.ndarray)
    assert aux["label"] == "name"


def test_a_history_from_outside_gives_tensors():
    w = tg.tensor(V, requires_grad=True)
    found = grad(lambda x: tg.sum(x * x * w))(V)
    found.sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), 2 * V)
    inner = grad(lambda y: grad(lambda x: tg.sum(x * x * y))(V).sum())(V)
    np.testing.assert_array_equal(inner, 2 * V)


def test_gradients_may_be_written():
    x = V.copy()
    first, second = grad(lambda a, b: tg.sum(a + b), argnums=(0, 1))(x, x)
    first *= -1.0
    np.testing.assert_array_equal(second, np.ones(3))
    np.testing.assert_array_equal(x, V)


# -- nesting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_grad_of_grad(order):
    f = tg.sin
    for _ in range(order):
        f = grad(f)
    expected = [np.sin, np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x)][order % 4]
    assert f(0.7).item() == pytest.approx(expected(0.7), rel=1e-12)
    assert isinstance(f(0.7), np.float64)


TRANSFORMS = {
    "grad": lambda f: lambda x: tg.sum(grad(f)(x) ** 2),
    "value_and_grad": lambda f: lambda x: (lambda v, g: v * tg.sum(g))(*value_and_grad(f)(x)),
    "vjp": lambda f: lambda x: (lambda v, p: tg.sum(v * p(v * 2)[0]))(*vjp(f, x)),
    "jacobian": lambda f: lambda x: tg.sum(jacobian(lambda y: tg.sin(y) * f(y))(x) ** 2),
    "tall jacobian": lambda f: (
        lambda x: tg.sum(jacobian(lambda y: tg.tile(tg.sin(y) * f(y), 9))(x) ** 2)
    ),
    "hessian": lambda f: lambda x: tg.sum(hessian(f)(x) ** 2),
    "hvp": lambda f: lambda x: tg.sum(hvp(f)(x, x) ** 2),
}


def base(x):
    return tg.sum(tg.sin(x) * x[0] ** 2)


@pytest.mark.parametrize("inner", TRANSFORMS)
@pytest.mark.parametrize("outer", ["grad", "value_and_grad", "vjp", "jacobian", "hvp"])
def test_transforms_of_transforms(outer, inner):
    f = TRANSFORMS[inner](base)
    x, v = V[:2], np.array([0.3, -0.7])

    def number(at):
        return f(at).item()

    if outer == "hvp":
        found = values(hvp(f)(x, v))
        eps = 1e-5
        expected = (values(grad(f)(x + eps * v)) - values(grad(f)(x - eps * v))) / (2 * eps)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        return
    if outer == "grad":
        found = grad(f)(x)
    elif outer == "value_and_grad":
        value, found = value_and_grad(f)(x)
        assert value.item() == pytest.approx(number(x))
    elif outer == "vjp":
        found = vjp(f, x)[1](np.array(1.0))[0]
    else:
        found = jacobian(f)(x)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, numeric_jacobian(number, x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("inner", TRANSFORMS)
def test_backward_through_transforms(inner):
    x = tg.tensor(V[:2], requires_grad=True)
    f = TRANSFORMS[inner](base)
    y = f(x * 2)
    assert y.requires_grad
    y.backward()
    expected = numeric_jacobian(lambda a: f(a * 2).item(), V[:2])
    np.testing.assert_allclose(values(x.grad), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("inner", TRANSFORMS)
def test_nothing_is_recorded_around_transforms_of_values(inner):
    y = TRANSFORMS[inner](base)(tg.tensor(V[:2]))
    assert not y.requires_grad


@pytest.mark.parametrize("inner", TRANSFORMS)
def test_transforms_under_no_grad(inner):
    expected = TRANSFORMS[inner](base)(V[:2]).item()
    x = tg.tensor(V[:2], requires_grad=True)
    with tg.no_grad():
        y = TRANSFORMS[inner](base)(x)
        assert not tg.is_grad_enabled()
    assert y.item() == pytest.approx(expected)
    assert not y.requires_grad


def test_closure_over_an_outer_variable():
    # d/dy (d/dx (x² y³) at x = y) = d/dy (2 y⁴)
    def outer(y):
        return grad(lambda x: x**2 * y**3)(y)

    assert grad(outer)(1.5).item() == pytest.approx(8 * 1.5**3)


def test_closure_over_an_outer_variable_only():
    def outer(y):
        return grad(lambda x: x * tg.sin(y))(1.0)

    assert grad(outer)(0.7).item() == pytest.approx(np.cos(0.7))
    assert grad(grad(outer))(0.7).item() == pytest.approx(-np.sin(0.7))


def test_closure_over_an_outer_intermediate():
    def outer(y):
        z = tg.exp(y) * y

        def inner(x):
            return tg.sum(x * x * z)

        return tg.sum(grad(inner)(V) * z)

    expected = numeric_jacobian(lambda y: np.sum(2 * V * (np.exp(y) * y) ** 2), 0.6)
    assert grad(outer)(0.6).item() == pytest.approx(float(expected), rel=1e-8)


def test_inner_function_that_ignores_its_argument():
    def outer(y):
        return grad(lambda x: y * 2)(1.0) + y

    assert grad(outer)(3.0).item() == 1.0


def test_inner_gradient_that_does_not_depend_on_the_outer():
    def outer(y):
        return grad(lambda x: x**2)(3.0) * y

    assert grad(outer)(2.0).item() == 6.0


def test_perturbation_confusion():
    # d/dx (x · d/dy (x + y)) = 1
    assert grad(lambda x: x * grad(lambda y: x + y)(1.0))(1.0).item() == 1.0
    # d/dx (x · d/dy (x · y)) = 2x
    assert grad(lambda x: x * grad(lambda y: x * y)(2.0))(3.0).item() == 6.0


def test_closure_over_a_leaf():
    w = tg.tensor(2.0, requires_grad=True)
    g = grad(lambda x: x**2 * w)(3.0)
    assert g.item() == 12.0
    assert g.requires_grad
    g.backward()
    assert w.grad.item() == 6.0


def test_closure_over_a_recorded_tensor():
    w = tg.tensor(2.0, requires_grad=True)
    u = w**3
    g = grad(lambda x: tg.sum(x**2) * u)(V)
    g.sum().backward()
    assert w.grad.item() == pytest.approx(2 * V.sum() * 12.0)


@pytest.mark.parametrize("n", [1, 3, 6])
def test_deep_nesting_of_closures(n):
    def level(k, *outer):
        if k == 0:
            product = outer[0]
            for o in outer[1:]:
                product = product * o
            return product
        return grad(lambda x: level(k - 1, x, *outer) * x)(1.5)

    # each level differentiates by its own variable: d/dx (x · c x) = 2 c x
    expected = 1.0
    for _ in range(n):
        expected *= 2 * 1.5
    assert float(level(n)) == pytest.approx(expected)


def test_three_levels_with_shared_variables():
    def f(x):
        def g(y):
            def h(z):
                return x * y * z + x**2 * z**2

            return grad(h)(y) * x

        return grad(g)(x) + x

    # h' = x y + 2 x² z at z = y: (x y + 2 x² y) x ; by y: x² + 2 x³ ; at y = x, plus x
    assert (
        f(1.2).item()
        if isinstance(f(1.2), tg.Tensor)
        else f(1.2) == pytest.approx(1.2**2 + 2 * 1.2**3 + 1.2)
    )
    assert grad(f)(1.2).item() == pytest.approx(2 * 1.2 + 6 * 1.2**2 + 1)


def test_jacobian_of_grad_is_the_hessian():
    a = jacobian(grad(base))(V)
    np.testing.assert_allclose(values(a), values(hessian(base)(V)), rtol=1e-14)
    np.testing.assert_allclose(values(a @ V), values(hvp(base)(V, V)), rtol=1e-12)


def test_grad_inside_a_backward_pass():
    class F(tg.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return tg.as_tensor(np.sin(x.detach().numpy()))

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * grad(lambda y: tg.sum(tg.sin(y)))(x)

    np.testing.assert_allclose(values(grad(lambda x: tg.sum(F.apply(x)))(V)), np.cos(V))
    np.testing.assert_allclose(
        values(hessian(lambda x: tg.sum(F.apply(x)))(V)), np.diag(-np.sin(V))
    )


def test_backward_inside_a_transformed_function():
    w = tg.tensor(2.0, requires_grad=True)

    def f(x):
        (w * w).backward()
        return x * x

    assert grad(f)(3.0).item() == 6.0
    assert w.grad.item() == 4.0


def test_in_place_work_inside_a_transformed_function():
    def f(x):
        out = tg.zeros(3)
        out[0] = x[0]
        for k in range(1, 3):
            out[k] = out[k - 1].clone() * x[k]
        return tg.sum(out)

    expected = numeric_jacobian(lambda x: np.sum(np.cumprod(x)), V)
    np.testing.assert_allclose(values(grad(f)(V)), expected, rtol=1e-7)


def test_newtons_method():
    def f(x):
        return tg.sum((x**2 - np.array([2.0, 3.0, 5.0])) ** 2)

    x = np.array([1.5, 1.8, 2.3])
    for _ in range(8):
        x = x - np.linalg.solve(values(hessian(f)(x)), values(grad(f)(x)))
    np.testing.assert_allclose(x**2, [2.0, 3.0, 5.0], rtol=1e-10)


def test_implicit_derivative_of_a_fixed_point():
    """The transforms as building blocks of a user's Function."""

    def step(x, a):
        return (x + a / x) / 2

    class Fixed(tg.Function):
        @staticmethod
        def forward(ctx, a):
            x = values(a)
            for _ in range(30):
                x = step(x, values(a))
            ctx.x = x
            ctx.save_for_backward(a)
            return tg.as_tensor(x)

        @staticmethod
        def backward(ctx, g):
            (a,) = ctx.saved_tensors
            dx, da = grad(step, (0, 1))(ctx.x, a)
            return g * da / (1 - dx)

    assert grad(Fixed.apply)(2.0).item() == pytest.approx(0.5 / np.sqrt(2.0))


def test_jvp_of_several_results():
    """The tangents have the structure of the result."""

    def f(x):
        return [x * 2, {"sum": (x * x).sum(), "constant": 3.0}]

    x, t = np.array([1.0, 2.0]), np.array([1.0, 10.0])
    value, tangent = tg.jvp(f)(x, t)
    assert value[0].tolist() == [2.0, 4.0]
    assert tangent[0].tolist() == [2.0, 20.0]
    assert tangent[1]["sum"].item() == 42.0
    assert tangent[1]["constant"].item() == 0.0
    first, second = tg.jvp(lambda x: (x * 2, x * 3))(x, t)[1]
    assert (first.tolist(), second.tolist()) == ([2.0, 20.0], [3.0, 30.0])
    value, tangent = tg.jvp(lambda x: (x * 2, 3, x[0] > 0))(x, t)
    assert (value[1].item(), tangent[1].item(), tangent[1].dtype) == (3, 0, np.int64)
    assert tangent[2].dtype == bool
    nested = tg.grad(lambda y: tg.jvp(lambda x: (x * x * y, x * y))(3.0, 1.0)[1][0])
    assert nested(2.0).item() == 6.0


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("elsewhere", [in_thread, lambda work: work()], ids=["thread", "unused"])
def test_nesting_belongs_to_the_call(elsewhere):
    """Only what the result depends on makes a derivative differentiable itself."""
    w = tg.tensor([1.0, 2.0], requires_grad=True)
    v = w * 2.0

    def f(x):
        elsewhere(lambda: (w * v).sum())
        return (x * x).sum()

    x, t = np.array([1.0, 2.0]), np.array([1.0, 0.0])
    for found in (tg.grad(f)(x), tg.hvp(f)(x, t), *tg.jvp(f)(x, t), tg.value_and_grad(f)(x)[0]):
        assert isinstance(found, (np.ndarray, np.float64))
    for outside in (w, v):
        assert tg.grad(lambda x, outside=outside: f(x) + (x * outside).sum())(x).requires_grad
        jacobian = tg.jacobian(lambda x, outside=outside: x * outside)(x)
        assert jacobian.requires_grad


def test_many_threads():
    """Four threads that differentiate at once are not taken for one another."""
    found = []

    def work():
        for _ in range(100):
            w = tg.tensor([1.0, 2.0], requires_grad=True)
            (w * w).sum()
            x = np.array([1.0, 2.0])
            inner = tg.grad(lambda x: (tg.sin(x) * x).sum())(x)
            outer = tg.grad(lambda x, w=w: (x * w).sum())(x)
            found.append((type(inner), outer.requires_grad))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(np.ndarray, True)] * 400


class DetachedExp(tg.Function):
    """Its backward leaves the graph."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return tg.exp(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return tg.tensor(g.detach().numpy() * np.exp(x.detach().numpy()))


def test_tall_jacobians_through_code_of_users():
    """Backwards and hooks that are not recorded, or not linear, are called for each row."""

    def hooked(x):
        y = x * 3.0
        y.register_hook(lambda g: g.detach().clip(-0.5, 0.5))
        return y * np.ones(5)

    x = np.array([1.0])
    found = tg.jacobian(lambda x: (DetachedExp.apply(x) + x * x) * np.ones(5))(x)
    np.testing.assert_allclose(found, np.full((5, 1), np.e + 2.0))
    np.testing.assert_allclose(tg.jacobian(hooked)(x), np.full((5, 1), 1.5))


@pytest.mark.parametrize(
    "inner",
    [
        lambda a: tg.grad(lambda y: (y**2, a * 3.0), has_aux=True)(2.0)[1],
        lambda a: tg.value_and_grad(lambda y: (y**2, a * 3.0), has_aux=True)(2.0)[0][1],
        lambda a: tg.vjp(lambda y: (y**2, [a * 3.0]), 2.0, has_aux=True)[2][0],
        lambda a: tg.jacobian(lambda y: (y**2, {"a": a * 3.0}), has_aux=True)(2.0)[1]["a"],
        lambda a: tg.value_and_grad(lambda y: a)(2.0)[0] * 3.0,
        lambda a: tg.vjp(lambda y: (a, y * y), 2.0)[0][0] * 3.0,
        lambda a: tg.jvp(lambda y: a)(2.0, 1.0)[0] * 3.0,
    ],
)
def test_results_that_depend_on_the_outside_keep_their_history(inner):
    assert tg.grad(lambda a: inner(a) + a)(1.0) == 4.0
    a = tg.tensor(1.0, requires_grad=True)
    (inner(a) + a).backward()
    assert a.grad.item() == 4.0


@pytest.mark.parametrize("context", [tg.no_grad, tg.inference_mode])
@pytest.mark.parametrize("recorded", [False, True])
def test_transforms_record_whatever_the_mode(context, recorded):
    def cubes(x):
        return (x**3).sum()

    x = np.array([1.0, 2.0])
    given = tg.tensor(x, requires_grad=recorded) if recorded else x
    with context():
        np.testing.assert_array_equal(tg.grad(cubes)(given), 3 * x**2)
        np.testing.assert_array_equal(tg.jacobian(lambda x: x * x)(given), np.diag(2 * x))
        np.testing.assert_array_equal(tg.hessian(cubes)(given), np.diag(6 * x))
        np.testing.assert_array_equal(tg.hvp(cubes)(given, x), 6 * x * x)
        np.testing.assert_array_equal(tg.jvp(cubes)(given, x)[1], 3 * np.sum(x**3))
        np.testing.assert_array_equal(tg.vjp(cubes, given)[1](1.0)[0], 3 * x**2)
        assert tg.is_inference_mode_enabled() is (context is tg.inference_mode)
    assert tg.is_grad_enabled()
