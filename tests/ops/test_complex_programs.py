"""Programs with complex tensors: losses, dtypes, views, in-place work, hooks, modes, Functions."""

import copy
import operator
import pickle
import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import detect_anomaly, grad, gradcheck, gradgradcheck
from tapegrad.autograd.graph import saved_tensors_hooks
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE

Z = np.array([1.0 + 2.0j, 0.5 - 1.0j, -0.75 + 0.25j])
X = np.array([0.5, 2.0, 1.5])
M = np.array([[1.0 + 2.0j, 0.5 - 1.0j, 2.0], [-0.75 + 0.25j, 2.0 - 0.5j, 1j]])


def leaf(data=Z, dtype=None):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


def array_of(tensor):
    return tensor.detach().numpy() if isinstance(tensor, tg.Tensor) else tensor


def loss_of(z):
    """A real loss that every part of a result counts in."""
    return (abs(z) ** 2 + 2 * z.real - 0.5 * z.imag).sum()


def slope(z):
    """Its gradient by z."""
    return 2 * z + 2 - 0.5j


def same(found, expected):
    expected = np.asarray(expected)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(array_of(found), expected, rtol=1e-13, atol=1e-14)


# -- the convention --------------------------------------------------------------------------------


def test_gradient_of_the_square_of_the_modulus():
    z = leaf()
    (z * z.conj()).real.sum().backward()
    same(z.grad, 2 * Z)


def test_two_real_variables():
    """The gradient by z is that by its real part, plus i times that by its imaginary part."""
    x, y, z = leaf(Z.real), leaf(Z.imag), leaf()

    def f(z):
        return (tg.exp(z * 0.5) * z.conj()).imag.sum()

    f(x + 1j * y).backward()
    f(z).backward()
    same(z.grad, array_of(x.grad) + 1j * array_of(y.grad))


def test_steepest_descent():
    z = leaf()
    for _ in range(60):
        z.grad = None
        (abs(z - 1j) ** 2).sum().backward()
        with tg.no_grad():
            z -= 0.25 * z.grad
    same(z.detach(), np.full(3, 1j))


def test_a_cotangent_of_a_holomorphic_function_meets_the_conjugate_derivative():
    z, g = leaf(), np.array([1j, 2.0, 1 - 1j])
    (found,) = grad(tg.exp(z), z, g)
    same(found, g * np.conj(np.exp(Z)))


def test_create_graph():
    z = leaf()
    (first,) = grad((abs(z) ** 4).sum(), z, create_graph=True)
    same(first, 4 * abs(Z) ** 2 * Z)
    (again,) = grad(first.real.sum(), z, create_graph=True)
    same(again, 8 * Z.real * Z + 4 * abs(Z) ** 2)
    (third,) = grad(again.imag.sum(), z)
    same(third, 8 * Z.imag + 8j * Z.real)  # of Im(again) = 8 a b, for z = a + bi


# -- losses and cotangents -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_loss_is_real(dtype):
    message = f"grad can be implicitly created only for real scalar outputs but got {dtype}"
    z = leaf(Z, dtype)
    with pytest.raises(RuntimeError, match=message):
        z.sum().backward()
    with pytest.raises(RuntimeError, match=message):
        grad(tg.prod(z), z)
    with pytest.raises(RuntimeError, match="only for scalar outputs"):
        (z * 1).backward()
    assert z.grad is None


def test_given_cotangents():
    z = leaf()
    (z * z).sum().backward(np.array(1 - 2j))
    same(z.grad, (1 - 2j) * np.conj(2 * Z))
    for out, g in ((z * 1, np.ones(3)), (abs(z), np.ones(3, complex))):
        with pytest.raises(RuntimeError, match="For complex Tensors, both grad_output and output"):
            out.backward(g)
    single = leaf(Z, "complex64")
    (g,) = grad(single * 1, single, np.full(3, 1j))  # converted, as among real dtypes
    same(g, np.full(3, 1j, np.complex64))


def test_gradients_accumulate():
    z = leaf()
    for k in range(1, 4):
        loss_of(z).backward()
        same(z.grad, k * slope(Z))
    held = z.grad
    (z * 1j).real.sum().backward()
    assert z.grad is held
    same(held, 3 * slope(Z) - 1j)


def test_a_gradient_has_the_dtype_of_its_leaf():
    z, x = leaf(), leaf(X)
    with pytest.raises(RuntimeError, match="expected complex128, got float64"):
        z.grad = tg.ones(3)
    with pytest.raises(RuntimeError, match="expected float64, got complex128"):
        x.grad = tg.ones(3, dtype=complex)
    x.grad = tg.zeros(3)
    (x * z).imag.sum().backward()
    assert (x.grad.dtype, z.grad.dtype) == (np.float64, np.complex128)


@pytest.mark.parametrize("create_graph", [False, True])
def test_fan_out_to_real_and_complex_uses(create_graph):
    """A real tensor gets contributions from real and complex results, and from casts."""
    x, z = leaf(X), leaf()
    y = x * 2
    loss = (
        (y * z).real.sum() + (y * y).sum() + (y.astype(complex) + z).imag.sum() + abs(y + z).sum()
    )
    found = grad(loss, [x, y, z], create_graph=create_graph)
    w = 2 * X + Z
    unit = w / abs(w)
    by_y = Z.real + 4 * X + unit.real
    for g, expected in zip(found, (2 * by_y, by_y, 2 * X + 1j + unit), strict=True):
        same(g, expected)


def test_transforms():
    """A derivative of a complex result is not a real number."""
    for transform in (tg.grad, tg.value_and_grad, tg.jacobian, tg.hessian):
        with pytest.raises((RuntimeError, TypeError), match=r"complex|real"):
            transform(lambda x: x * x * (1 + 2j))(2.0)
    assert tg.grad(lambda x: abs(tg.exp(1j * x) + 1) ** 2)(0.5).item() == pytest.approx(
        -2 * np.sin(0.5)
    )
    _, pullback = tg.vjp(lambda x: x * (1 + 2j), X)
    same(pullback(np.full(3, 1j))[0], np.full(3, 2.0))


# -- dtypes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("target", ["complex64", "complex128"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_astype_to_complex(source, target, create_graph):
    x = leaf(X, source)
    z = x.astype(target)
    assert z.dtype == target
    np.testing.assert_allclose(array_of(z), X)
    g = np.array([1 + 2j, 3 - 1j, 1j], target)
    (found,) = grad(z, x, g, create_graph=create_graph)
    same(found, g.real.astype(source))


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("target", ["float32", "float64"])
@pytest.mark.parametrize("source", ["complex64", "complex128"])
def test_astype_to_real(source, target, create_graph):
    """The imaginary part is discarded, with NumPy's warning; its gradient is 0."""
    z = leaf(Z, source)
    with pytest.warns(np.exceptions.ComplexWarning, match="discards the imaginary part"):
        x = z.astype(target)
    g = np.array([1.0, -2.0, 3.0], target)
    (found,) = grad(x, z, g, create_graph=create_graph)
    same(found, g.astype(source))


def test_astype_between_complex_dtypes_and_to_integers():
    z = leaf(Z, "complex64")
    loss_of(z.astype(complex)).backward()
    same(z.grad, slope(Z).astype(np.complex64))
    with pytest.warns(np.exceptions.ComplexWarning):
        assert not z.astype(int).requires_grad
    assert not z.astype(bool).requires_grad
    with pytest.raises(TypeError, match=r"astype.*(clongdouble|complex256)"):
        z.astype(np.clongdouble)


def test_leaves():
    for make in (tg.zeros, tg.ones, tg.empty):
        assert make(2, dtype=complex, requires_grad=True).dtype == np.complex128
    assert tg.tensor([1, 2], dtype="complex64", requires_grad=True).requires_grad
    assert tg.as_tensor(Z).requires_grad_().grad is None
    z = leaf()
    loss_of(z).backward()
    for twin in (copy.deepcopy(z), pickle.loads(pickle.dumps(z))):
        assert twin.requires_grad
        same(twin.detach(), Z)
        same(twin.grad, slope(Z))
    assert complex(z.detach()[0]) == Z[0]
    assert z[0].item() == Z[0]
    for convert in (float, int):
        with pytest.raises(TypeError):
            convert(z.detach()[0])


def test_dimensions():
    """The tape holds complex arrays of one dimension less than real ones."""
    for n in (30, 31):
        z = leaf(np.full((1,) * n, 2j))
        if n == 30:
            loss_of(z * 1j).backward()
            assert z.grad.ndim == n
    with pytest.raises(ValueError, match="at most 31"):
        leaf(np.full((1,) * 32, 2j))


# -- views -----------------------------------------------------------------------------------------

VIEWS = {
    "real": lambda z: z.real,
    "imag": lambda z: z.imag,
    "transpose": lambda z: z.T,
    "slice": lambda z: z[:, 1:],
    "reversed": lambda z: z[::-1, ::-2],
    "row": lambda z: z[1],
    "element": lambda z: z[1, 2],
    "new axis": lambda z: z[:, None],
    "reshape": lambda z: z.reshape(3, 2),
    "ravel": lambda z: z.ravel(),
    "diagonal": lambda z: z.diagonal(),
    "swapaxes": lambda z: z.swapaxes(0, 1),
    "real of transpose": lambda z: z.T.real,
    "transpose of imag": lambda z: z.imag.T,
    "slice of imag": lambda z: z.imag[0, 1:],
    "imag of slice": lambda z: z[0, ::2].imag,
    "diagonal of real": lambda z: z.real.diagonal(1),
    "reshape of imag of transpose": lambda z: z.T[1:].imag[::-1],
}


def put(view, array, values):
    """A copy of a matrix with values where a view looks."""
    numbered = (np.arange(0, 2 * M.size, 2) + 1j * np.arange(1, 2 * M.size, 2)).reshape(M.shape)
    places, out = np.asarray(view(numbered)), np.array(array)
    flat = out.reshape(-1).view(float)
    if places.dtype.kind == "c":
        flat[places.imag.astype(int)] = np.imag(values)
    flat[places.real.astype(int)] = np.real(values)
    return out


@pytest.mark.parametrize("name", VIEWS)
def test_gradient_through_a_view(name):
    view, z = VIEWS[name], leaf(M)
    out = view(z)
    np.testing.assert_array_equal(array_of(out), view(M))
    assert out._is_view()
    g = np.asarray(np.linspace(1, 2, out.size).reshape(out.shape) * (1 + 1j))
    g = g if out.dtype.kind == "c" else g.real
    unit = put(view, np.zeros_like(M), g)  # the transpose of a view
    for create_graph in (False, True):
        (found,) = grad(out, z, g, retain_graph=True, create_graph=create_graph)
        same(found, unit)
    assert gradcheck(view, z)
    assert gradgradcheck(lambda z: view(z * z), z)


WRITABLE = [name for name in VIEWS if "diagonal" not in name]  # as in NumPy


@pytest.mark.parametrize("name", WRITABLE)
def test_writing_through_a_view(name):
    """What is written gets the gradient, what it replaced does not."""
    view = VIEWS[name]
    z = leaf(M)
    y = z * (1 + 1j)
    shown = view(y)
    x = leaf(np.full(shown.shape, 3.0))
    if shown.ndim:
        shown[...] = x
    else:
        shown.copy_(x)
    written = put(view, M * (1 + 1j), 3.0)
    same(y.detach(), written)
    same(shown.detach(), view(written))
    loss_of(y).backward()
    by_y = slope(written)
    kept = put(view, by_y, 0)
    same(z.grad, kept * np.conj(1 + 1j))
    same(x.grad, np.ascontiguousarray(view(by_y).real))


@pytest.mark.parametrize("name", WRITABLE)
def test_in_place_through_a_view(name):
    view = VIEWS[name]

    def f(z, x):
        y = z * 1
        view(y).mul_(x)
        shown = view(y)
        shown += 2
        shown *= shown.detach() * 0 + 0.5
        return y

    z, x = leaf(M), leaf(0.7)
    same(f(z, x).detach(), put(view, M, (view(M) * 0.7 + 2) / 2))
    assert gradcheck(f, (z, x))


def test_views_follow_their_base():
    z = leaf()
    y = z * 1
    re, im = y.real, y.imag
    assert re._base is y
    y *= 1j
    same(re.detach(), -Z.imag)
    same(im.detach(), Z.real)
    (re * im).sum().backward()  # -Re z Im z
    same(z.grad, -Z.imag - 1j * Z.real)


def test_parts_can_be_set():
    z, x = leaf(), leaf(X)
    y = z * 1
    y.imag += 1
    y.real = x
    same(y.detach(), X + 1j * (Z.imag + 1))
    loss_of(y).backward()
    same(x.grad, 2 * X + 2)
    same(z.grad, 1j * slope(X + 1j * (Z.imag + 1)).imag)


def test_parts_of_a_leaf_are_not_written():
    z = leaf()
    for part in (z.real, z.imag, z[1:].imag):
        with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
            part.mul_(2)
    with tg.no_grad():
        z.imag.zero_()
    same(z.detach(), Z.real + 0j)


# -- in-place work ---------------------------------------------------------------------------------

METHODS = [
    name
    for name, op in TABLE.items()
    if isinstance(op, Elementwise) and op.arguments == ("x",) and hasattr(tg.Tensor, f"{name}_")
]
REFUSED = ["ceil", "floor", "trunc", "cbrt", "relu", "softplus", "erf", "erfc", "gammaln"]
REFUSED += ["digamma", "i0"]


@pytest.mark.parametrize("name", [name for name in METHODS if name not in REFUSED])
def test_in_place_method(name):
    """As in NumPy, a real result becomes the real part of a complex target."""

    def f(z):
        y = z * 1
        assert getattr(y, f"{name}_")() is y
        return y

    z = leaf(Z * 0.3)
    out = f(z)
    assert out.dtype == np.complex128
    same(out.detach(), getattr(np, name, lambda z: 1 / (1 + np.exp(-z)))(Z * 0.3).astype(complex))
    assert gradcheck(f, z)


@pytest.mark.parametrize("name", REFUSED)
def test_in_place_method_of_real_numbers_only(name):
    z = leaf()
    y = z * 1
    with pytest.raises(TypeError, match=name):
        getattr(y, f"{name}_")()
    same(y.detach(), Z)


@pytest.mark.parametrize("other", [leaf(Z[::-1]), leaf(X), 2, 0.5, 1 - 1j, Z[:1]], ids=str)
@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "itruediv", "ipow"])
def test_in_place_operator(name, other):
    def f(z, *others):
        y = z * 1
        return getattr(operator, name)(y, others[0] if others else other)

    inputs = (leaf(), other) if isinstance(other, tg.Tensor) else (leaf(),)
    value = array_of(other) if isinstance(other, tg.Tensor) else other
    same(f(*inputs).detach(), getattr(operator, name)(Z.copy(), value))
    assert gradcheck(f, inputs)


def test_a_real_tensor_stays_real():
    y, z = leaf(X) * 1, leaf()
    for write in (
        lambda: y.mul_(z),
        lambda: y.__iadd__(1j),
        lambda: y.copy_(z),
        lambda: y.fill_(1j),
        lambda: tg.exp(z, out=y),
    ):
        with pytest.raises((RuntimeError, TypeError), match="can't be cast"):
            write()
    same(y.detach(), X)


@pytest.mark.parametrize("value", [1j, np.array(1j), leaf(1j)], ids=["number", "array", "tensor"])
def test_no_item_of_a_real_tensor_is_complex(value):
    """No part of it is lost without a word."""
    y = leaf(X) * 1
    with pytest.raises((RuntimeError, TypeError, np.exceptions.ComplexWarning)):
        y[0] = value


def test_out():
    z, w = leaf(), leaf(Z[::-1])
    out = tg.zeros(3, dtype=complex)
    assert np.multiply(z, w, out=out) is out
    tg.exp(out, out=out)
    assert out.requires_grad
    loss_of(out).backward()
    e = np.exp(Z * Z[::-1])
    same(z.grad, slope(e) * np.conj(e * Z[::-1]))


INDICES = [0, slice(1, None), [2, 0], np.array([True, False, True]), Ellipsis]


@pytest.mark.parametrize("kind", ["complex", "real", "number"])
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_item_assignment(index, kind):
    """A complex tensor takes values of every kind; their gradients are of their own kind."""
    shape = np.shape(Z[index])
    value = {"complex": np.full(shape, 2 - 1j), "real": np.full(shape, 3.0), "number": 1j}[kind]

    def f(z, *values):
        y = z * 2
        y[index] = values[0] if values else value
        return y * y

    inputs = (leaf(),) if kind == "number" else (leaf(), leaf(value))
    expected = 2 * Z
    expected[index] = value
    same(f(*inputs).detach(), expected**2)
    assert gradcheck(f, inputs, check_grad_dtypes=True)
    assert gradgradcheck(f, inputs, fast_mode=True)


def test_copy_and_fill():
    z, x = leaf(), leaf(X)
    y = z * 1
    y[1:].copy_(x[1:])
    y[:1].fill_(2j)
    same(y.detach(), [2j, X[1], X[2]])
    loss_of(y).backward()
    same(x.grad, [0.0, *(2 * X[1:] + 2)])
    same(z.grad, np.zeros(3, complex))
    y = z * 1
    y.zero_()
    assert not y.detach().numpy().any()


@pytest.mark.parametrize("write", [lambda y: y.mul_(2), lambda y: y.imag.zero_()])
def test_a_saved_value_is_not_overwritten(write):
    z = leaf()
    y = tg.exp(z)
    loss = abs(y).sum()
    write(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# -- hooks and modes -------------------------------------------------------------------------------

SAVING = {
    "exp": tg.exp,
    "multiply": lambda z: z * (z + 1),
    "absolute": abs,
    "sign": tg.sign,
    "angle": tg.angle,
    "norm": tg.linalg.norm,
    "power": lambda z: z**2.5,
    "prod": tg.prod,
    "matmul": lambda z: z @ z,
    "where": lambda z: tg.where(np.array([True, False, True]), z, z * 2j),
    "inverse": lambda z: tg.linalg.inv(tg.outer(z, z.conj()) + np.eye(3)),
    "parts": lambda z: z.real * z.imag,
}


@pytest.mark.parametrize("name", SAVING)
def test_saved_tensor_hooks(name):
    f, z = SAVING[name], leaf()
    packed = []

    def pack(t):
        packed.append(t.dtype)
        return array_of(t).copy()

    expected = grad(_real_sum(f(z)), z)
    with saved_tensors_hooks(pack, tg.as_tensor):
        found = grad(_real_sum(f(z)), z)
    assert packed
    same(found[0], array_of(expected[0]))


def _real_sum(z):
    return loss_of(z) if z.dtype.kind == "c" else z.sum()


def test_hooks():
    z = leaf()
    y = z * 1j
    seen = []
    y.register_hook(lambda g: seen.append(g))
    y.register_hook(lambda g: g * 1j)
    y.retain_grad()
    z.register_hook(lambda g: 2 * g)
    z.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.dtype))
    loss_of(y).backward()
    by_y = slope(1j * Z)
    same(seen[0], by_y)
    same(y.grad, 1j * by_y)
    same(z.grad, 2 * (1j * by_y) * np.conj(1j))
    assert seen[1] == np.complex128
    y = z * 1
    y.register_hook(lambda g: g.real)
    with pytest.raises(RuntimeError, match="changed the type of value"):
        loss_of(y).backward()


def _not_a_number(z):
    return abs(tg.sqrt(z * 0)).sum() + abs(tg.log(z * 0)).sum()


def test_anomaly_mode():
    z = leaf()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode = detect_anomaly()
        with mode:
            loss_of(tg.exp(z) / z).backward()
            first = z.grad
            with pytest.raises(RuntimeError, match="returned nan values"):
                _not_a_number(z).backward()
    z.grad = None
    loss_of(tg.exp(z) / z).backward()
    same(z.grad, array_of(first))


def test_modes():
    z = leaf()
    with tg.no_grad():
        assert not any(t.requires_grad for t in (z * 1j, z.conj(), abs(z), z @ z, tg.sign(z)))
    assert not (z.detach() * 1j).requires_grad
    with tg.inference_mode():
        assert (z * z).is_inference()
    assert not (z == z.conj()).requires_grad
    assert np.array_equal(z.detach() == Z, [True] * 3)


# -- Functions -------------------------------------------------------------------------------------


class Scale(tg.Function):
    """A complex times a real argument."""

    @staticmethod
    def forward(ctx, z, x):
        ctx.save_for_backward(z, x)
        return z * x

    @staticmethod
    def backward(ctx, g):
        z, x = ctx.saved_tensors
        return g * x, (g * z.conj()).real


def test_function():
    z, x = leaf(), leaf(X)
    assert gradcheck(Scale.apply, (z, x), check_grad_dtypes=True)
    assert gradgradcheck(Scale.apply, (z, x))
    loss_of(Scale.apply(z, x)).backward()
    same(z.grad, slope(Z * X) * X)
    same(x.grad, (slope(Z * X) * Z.conj()).real)


class Turn(tg.Function):
    """From real to complex numbers; its gradient forgets to take the real part."""

    @staticmethod
    def forward(ctx, x):
        return x * (1 + 2j)

    @staticmethod
    def backward(ctx, g):
        return g * (1 - 2j)


class Part(tg.Function):
    """From complex to real numbers, with a real gradient."""

    @staticmethod
    def forward(ctx, z):
        return z.real * 1

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.mark.parametrize("create_graph", [False, True])
def test_kinds_of_gradients_of_functions(create_graph):
    """A complex argument takes a real gradient; a real one has no use for a complex gradient."""
    z, x = leaf(), leaf(X)
    (found,) = grad(Part.apply(z).sum(), z, create_graph=create_graph)
    same(found, np.ones(3, complex))
    with pytest.raises(RuntimeError, match="complex"):
        grad(Turn.apply(x).imag.sum(), x, create_graph=create_graph)


# -- tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hooked", [False, True])
def test_a_condition_is_not_differentiated(hooked):
    """It may be a tensor that requires gradients: only its truth counts."""
    z, x = leaf(), leaf([1.0, 0.0, 2.0])
    for condition in (x, z * array_of(x)):
        for value in (z, x):
            if hooked:
                with saved_tensors_hooks(lambda t: t, lambda t: t):
                    out = tg.where(condition, value, 3.0)
            else:
                out = tg.where(condition, value, 3.0)
            (g,) = grad(out, value, np.ones(3, out.dtype))
            same(g, np.array([1, 0, 1], out.dtype))


def test_check_grads_takes_complex_numbers():
    """It does not check something else instead."""
    tg.testing.check_grads(lambda x: tg.exp(1j * x).imag, [X], order=2)
    for f, x in ((lambda z: z * z, Z), (abs, Z), (lambda x: x * 1j, X)):
        with pytest.raises(TypeError, match="complex"):
            tg.testing.check_grads(f, [x])


def test_every_method_is_here():
    assert {f"{name}_" for name in METHODS} >= {"exp_", "conjugate_", "sigmoid_", "absolute_"}
    assert set(REFUSED) <= set(METHODS)
    assert set(METHODS) <= FUNCTIONS.keys()
