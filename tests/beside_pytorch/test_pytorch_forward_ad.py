"""Programs in forward mode, with dual tensors, on both libraries.

Left out are deliberate differences: a write to a dual tensor does not change the tangent that was
given to `make_dual`; tangents have the dtype of the primal part; `numpy()` of a dual tensor raises;
a gradient in `.grad` keeps its tangent while the level is open; inference mode keeps tangents; the
functional module keeps tangents; `jvp` and batches of dual tensors work inside a level; an output
of a Function does not share memory with dual arguments: PyTorch asks that its jvp returns a view.

Left out is also where PyTorch is wrong: `y *= y`, real dual values written to complex tensors,
second derivatives of `det` and `solve`, an undefined tangent returned by `jvp`. Zeros that
are no numbers there (`_efficientzerotensor`) count as zeros, and whether tangents of passive
factors require grad is not compared.
"""

import numpy as np
import pytest
from libraries import Programs

pytest.importorskip("torch")
program = Programs()


def tangent(lib, t):
    """The tangent of a tensor, or None."""
    found = lib.forward_ad.unpack_dual(t).tangent
    return None if found is None else with_memory(lib, found)


def with_memory(lib, t):
    """A tensor, or zeros in place of PyTorch's zeros without memory."""
    if lib.name == "torch" and t._is_zerotensor():
        return lib.package.zeros(t.shape, dtype=t.dtype)
    return t


def values_of(lib, t):
    return None if t is None else lib.array(with_memory(lib, t))


def dual(lib, values=(1.0, 2.0, 3.0), direction=(1.0, 10.0, 100.0), requires_grad=False):
    """A dual tensor; with `requires_grad` its primal part is a leaf."""
    x = lib.tensor(np.array(values).tolist(), requires_grad)
    return lib.forward_ad.make_dual(x, lib.tensor(np.array(direction).tolist()))


def leaf_and_dual(lib, values=(1.0, 2.0, 3.0), direction=(1.0, 10.0, 100.0)):
    x = lib.tensor(list(values), True)
    return x, lib.forward_ad.make_dual(x, lib.tensor(list(direction)))


def matrix(lib):
    return dual(lib, [[1.0, 2.0], [3.0, 4.5]], [[1.0, 10.0], [100.0, 1000.0]])


def both(lib, *values):
    """Values and tangents."""
    return [(lib.array(v), values_of(lib, tangent(lib, v))) for v in values]


# -- levels ---------------------------------------------------------------------------------------


@program
def numbers_of_levels(lib):
    fw = lib.forward_ad
    first = fw.enter_dual_level()
    fw.exit_dual_level()
    with fw.dual_level() as second:
        pass
    third = fw.enter_dual_level()
    fw.exit_dual_level(level=third)
    return first, second, third


@program(raises="Nested forward mode AD is not supported at the moment")
def nested_levels(lib):
    with lib.forward_ad.dual_level(), lib.forward_ad.dual_level():
        pass


@program
def nested_levels_leave_the_outer_one(lib):
    fw = lib.forward_ad
    with fw.dual_level():
        d = dual(lib)
        error = lib.attempt(fw.enter_dual_level)
        inner = tangent(lib, d * 2)
    return error, inner, tangent(lib, d)


@program
def exit_of_another_level(lib):
    fw = lib.forward_ad
    fw.enter_dual_level()
    try:
        return lib.attempt(lambda: fw.exit_dual_level(level=1))
    finally:
        fw.exit_dual_level()


@program
def tangents_after_the_level(lib):
    with lib.forward_ad.dual_level():
        d = dual(lib)
        y = d * 2
        t = tangent(lib, y)
    return d, y, t, tangent(lib, d), tangent(lib, y), tangent(lib, y + d)


@program
def tangents_in_the_next_level(lib):
    with lib.forward_ad.dual_level():
        d = dual(lib)
        y = d * 2
        v = y[1:]
    with lib.forward_ad.dual_level():
        again = both(lib, d, y, v, y * d)
        y[1:] = dual(lib)[:2]
        return again, both(lib, d, y, v)


@program
def made_again_in_the_next_level(lib):
    x = lib.tensor([1.0, 2.0])
    with lib.forward_ad.dual_level():
        d = lib.forward_ad.make_dual(x, lib.tensor([1.0, 1.0]))
    with lib.forward_ad.dual_level():
        e = lib.forward_ad.make_dual(d, lib.tensor([3.0, 5.0]))
        return both(lib, x, d, e, d * e)


@program
def an_exception_leaves_the_level(lib):
    def fails():
        with lib.forward_ad.dual_level():
            dual(lib)
            raise ValueError("within")

    first = lib.attempt(fails)
    with lib.forward_ad.dual_level():
        return first, tangent(lib, dual(lib) * 2)


@program(raises=True)
def no_level(lib):
    dual(lib)


@program
def unpacking_without_a_level(lib):
    x = lib.tensor([1.0])
    primal, t = lib.forward_ad.unpack_dual(x)
    return primal, t, primal is x


@program
def a_decorator(lib):
    @lib.forward_ad.dual_level()
    def derivative(x, t):
        return tangent(lib, lib.forward_ad.make_dual(x, t) ** 3)

    x, t = lib.tensor([2.0]), lib.tensor([1.0])
    return derivative(x, t), derivative(x, t * 2)


@program
def a_decorated_generator(lib):
    @lib.forward_ad.dual_level()
    def derivatives():
        for k in range(2):
            yield tangent(lib, dual(lib) * (k + 1))

    return list(derivatives())


# -- making and unpacking -------------------------------------------------------------------------


@program
def parts(lib):
    with lib.forward_ad.dual_level():
        x, t = lib.tensor([1.0, 2.0]), lib.tensor([3.0, 4.0])
        d = lib.forward_ad.make_dual(x, t)
        found = lib.forward_ad.unpack_dual(d)
        return [
            *(found.primal, found.tangent, tangent(lib, found.primal), tangent(lib, x)),
            *(d is x, d._base is x, found.primal._is_view(), found._fields),
        ]


@program
def unpacking_a_plain_tensor(lib):
    with lib.forward_ad.dual_level():
        x = lib.tensor([1.0])
        return tangent(lib, x), lib.forward_ad.unpack_dual(x).primal


@program(raises="Expected tangent to be floating point or complex")
def a_tangent_of_integers(lib):
    with lib.forward_ad.dual_level():
        lib.forward_ad.make_dual(lib.tensor([1.0]), lib.index(1))


@program(raises="Expected primal to be floating point or complex")
def a_primal_part_of_integers(lib):
    with lib.forward_ad.dual_level():
        lib.forward_ad.make_dual(lib.index(1), lib.tensor([1.0]))


@program(raises=True)
def another_shape(lib):
    with lib.forward_ad.dual_level():
        lib.forward_ad.make_dual(lib.tensor([1.0, 2.0]), lib.tensor([1.0]))


@program(raises=True)
def a_dual_of_a_dual(lib):
    with lib.forward_ad.dual_level():
        lib.forward_ad.make_dual(dual(lib), dual(lib).detach())


@program(raises="Setting a forward grad that itself has a forward gradient at the same level")
def a_dual_tangent(lib):
    with lib.forward_ad.dual_level():
        lib.forward_ad.make_dual(lib.tensor([1.0, 2.0, 3.0]), dual(lib))


@program
def histories_of_parts(lib):
    with lib.forward_ad.dual_level():
        x, t = lib.tensor([1.0], True), lib.tensor([3.0], True)
        d = lib.forward_ad.make_dual(x, t)
        primal, found = lib.forward_ad.unpack_dual(d)
        e = d * d
        return [
            *(d.requires_grad, d.is_leaf, primal.requires_grad, found.requires_grad),
            *lib.grad(e.sum(), x, retain_graph=True),
            *lib.grad(tangent(lib, e).sum(), [x, t]),
        ]


@program
def a_history_of_the_tangent_only(lib):
    with lib.forward_ad.dual_level():
        t = lib.tensor([3.0, 4.0], True)
        d = lib.forward_ad.make_dual(lib.tensor([1.0, 2.0]), t)
        y = (d * d).sin()
        return y.requires_grad, lib.grad(tangent(lib, y).sum(), t)


@program
def a_tangent_from_ops(lib):
    with lib.forward_ad.dual_level():
        t = lib.tensor([3.0, 4.0], True)
        d = lib.forward_ad.make_dual(lib.tensor([1.0, 2.0]), t.exp())
        return lib.grad(tangent(lib, d * d).sum(), t)


# -- modes ----------------------------------------------------------------------------------------


@program
def without_grad(lib):
    with lib.forward_ad.dual_level(), lib.no_grad():
        x, d = leaf_and_dual(lib)
        y = d * d + x
        return both(lib, d, y, y[1:])


@program
def detach(lib):
    with lib.forward_ad.dual_level():
        _, d = leaf_and_dual(lib)
        y = d * 2
        return both(lib, d.detach(), y.detach(), y.detach() * d, y.data)


@program
def detach_in_place(lib):
    with lib.forward_ad.dual_level():
        _, d = leaf_and_dual(lib)
        y = d * 2
        y.detach_()
        return both(lib, y)


@program
def requires_grad_of_a_dual(lib):
    with lib.forward_ad.dual_level():
        d = dual(lib)
        e = (d * 1).requires_grad_()
        y = e**3
        return (
            both(lib, y),
            lib.grad(y.sum(), e, retain_graph=True),
            lib.grad(tangent(lib, y).sum(), e),
        )


# -- ops ------------------------------------------------------------------------------------------

OPS = {
    "exp": lambda lib, x: lib.exp(x),
    "sin": lambda lib, x: lib.sin(x) * lib.cos(x),
    "tanh": lambda lib, x: lib.tanh(x) + lib.sqrt(x) - lib.log(x),
    "power": lambda lib, x: x**3 + 2.0**x + x**x,
    "divide": lambda lib, x: 1.0 / x + x / 3.0 - x / x.sum(),
    "negative": lambda lib, x: -x + abs(x - 2.5),
    "sum": lambda lib, x: x.sum() * x,
    "mean": lambda lib, x: x.mean() - x,
    "prod": lambda lib, x: x.prod(),
    "max": lambda lib, x: x.max() + x.min(),
    "cumsum": lambda lib, x: lib.cumsum(x, 0) * lib.cumprod(x, 0),
    "maximum": lambda lib, x: lib.maximum(x, lib.tensor([2.5, 1.0, 4.0])),
    "where": lambda lib, x: lib.where(x > 1.5, x * x, -x),
    "clip": lambda lib, x: lib.clip(x, 1.5, 2.5),
    "item": lambda lib, x: x[1] * x,
    "slice": lambda lib, x: x[1:] * x[:-1],
    "integers": lambda lib, x: x[lib.index(2, 0, 0, 1)],
    "mask": lambda lib, x: x[x > 1.5],
    "newaxis": lambda lib, x: x[:, None] * x[None, :],
    "ellipsis": lambda lib, x: x[..., 0],
    "matmul": lambda lib, x: (x[:, None] * x) @ x,
    "outer": lambda lib, x: lib.outer(x, x) @ lib.outer(x, x),
    "dot": lambda lib, x: lib.dot(x, x),
    "inv": lambda lib, x: lib.package.linalg.inv(lib.outer(x, x) + lib.eye(3)),
    "solve": lambda lib, x: lib.package.linalg.solve(lib.outer(x, x) + lib.eye(3), x),
    "det": lambda lib, x: lib.package.linalg.det(lib.outer(x, x) + lib.eye(3)),
    "cholesky": lambda lib, x: lib.package.linalg.cholesky(lib.outer(x, x) + lib.eye(3)),
    "norm": lambda lib, x: lib.package.linalg.norm(x),
    "stack": lambda lib, x: lib.stack([x, x * 2, lib.tensor([0.0, 1.0, 2.0])]),
    "concatenate": lambda lib, x: lib.concatenate([x, lib.tensor([7.0]), x * x]),
    "split": lambda lib, x: lib.split(lib.concatenate([x, x * x]), 2)[1],
    "transpose": lambda lib, x: lib.transpose(lib.outer(x, x * 2)),
    "reshape": lambda lib, x: x.reshape(3, 1) * x,
    "flip": lambda lib, x: lib.flip(x, (0,)),
    "roll": lambda lib, x: lib.roll(x, 1),
    "diagonal": lambda lib, x: lib.diagonal(lib.outer(x, x)),
    "tril": lambda lib, x: lib.tril(lib.outer(x, x)),
    "einsum": lambda lib, x: lib.einsum("i,j,j->i", x, x, x),
    "clone": lambda lib, x: x.clone(),
    "sigmoid": lambda lib, x: lib.sigmoid(x),
    "integer result": lambda lib, x: lib.argmax(x),
    "booleans": lambda lib, x: x > 1.5,
    "floor": lambda lib, x: lib.floor(x * 1.3) + lib.sign(x),
    "integer tensor": lambda lib, x: x * lib.index(1, 2, 3),
    "arange": lambda lib, x: x + lib.tensor([1.0, 2.0, 3.0]) * 2,
    "complex": lambda lib, x: lib.exp(x * 1j) * (1 + 2j),
    "abs of complex": lambda lib, x: lib.abs(x * (1 + 2j)),
    "real and imag": lambda lib, x: (x * 1j * x + x).real - lib.exp(x * 1j).imag,
    "conj": lambda lib, x: lib.exp(x * 1j).conj() * 1.0,
    "fft": lambda lib, x: lib.package.fft.fft(x),
    "irfft": lambda lib, x: lib.package.fft.irfft(lib.package.fft.rfft(x) ** 2),
    "float32": lambda lib, x: lib.astype(x, "float32") * 2,
    "float32 and back": lambda lib, x: lib.astype(lib.astype(x, "float32"), "float64") * x,
    "int64": lambda lib, x: lib.astype(x, "int64"),
    "complex128": lambda lib, x: lib.astype(x, "complex128") * 1j,
    "broadcast": lambda lib, x: x + lib.zeros(2, 3),
    "empty": lambda lib, x: x[:0] * 2,
}


def tangents_of_op(lib, name):
    op = OPS[name]
    with lib.forward_ad.dual_level():
        plain = both(lib, op(lib, dual(lib)))
        x, d = leaf_and_dual(lib)
        y = op(lib, d)
        with lib.no_grad():
            other = both(lib, op(lib, d))
        t = tangent(lib, y)
        found = []
        if t is not None and name not in WRONG:
            found.append(slope(lib, t, x))
        if y.requires_grad and name not in WRONG:
            for create_graph in (False, True):
                (g,) = lib.grad(number(y * y), x, create_graph=create_graph, retain_graph=True)
                s = tangent(lib, g)
                found += [values_of(lib, g), np.zeros(3) if s is None else lib.array(s)]
        return plain, other, both(lib, y), found


WRONG = ["det", "solve"]  # derivatives in PyTorch of the tangent and of the gradient


def number(t):
    return (t.real + 2 * t.imag if "complex" in str(t.dtype) else t).sum()


def slope(lib, t, x):
    """The gradient of the sum of a tangent, zeros if it does not depend on x."""
    if not t.requires_grad:
        return np.zeros(3)
    (g,) = lib.grad(number(t), x, retain_graph=True, allow_unused=True)
    return np.zeros(3) if g is None else values_of(lib, g)


@pytest.mark.parametrize("name", OPS)
def test_op(name):
    def run(lib):
        return tangents_of_op(lib, name)

    run.__name__ = f"op_{name}"
    one = Programs()
    one(run)
    one.check(run.__name__)


# -- views ----------------------------------------------------------------------------------------


@program
def views_of_duals(lib):
    with lib.forward_ad.dual_level():
        m = matrix(lib)
        row, column, t = m[0], m[:, 1], lib.transpose(m)
        return both(lib, row, column, t, t[1], m.reshape(4)[1:], row[1], lib.diagonal(m))


@program
def views_made_before_the_write(lib):
    with lib.forward_ad.dual_level():
        base = lib.zeros(2, 2)
        row, t = base[1], lib.transpose(base)
        item = t[1][1:]
        base[1] = dual(lib)[:2]
        return both(lib, base, row, t, item)


@program
def writes_through_views(lib):
    with lib.forward_ad.dual_level():
        base = lib.zeros(2, 2)
        row, t = base[1], lib.transpose(base)
        t[0] = dual(lib)[1:]
        row += dual(lib)[:2]
        row[1:] *= 3
        return both(lib, base, row, t)


@program
def views_of_views(lib):
    with lib.forward_ad.dual_level():
        m = matrix(lib) * 1
        t = lib.transpose(m)
        part = t[1:]
        item = part.reshape(2)[1:]
        item *= 10
        m += m * m
        return both(lib, m, t, part, item)


@program
def a_view_made_before_the_level(lib):
    base = lib.zeros(3)
    view = base[1:]
    with lib.forward_ad.dual_level():
        base[:2] = dual(lib)[:2]
        first = both(lib, base, view)
        view *= view.clone()
        return first, both(lib, base, view)


@program
def a_write_to_a_diagonal(lib):
    with lib.forward_ad.dual_level():
        m = lib.zeros(3, 3)
        m[lib.index(0, 1, 2), lib.index(0, 1, 2)] = dual(lib)
        return both(lib, m, lib.diagonal(m) * 2)


@program
def writes_to_plain_parts_of_a_base(lib):
    with lib.forward_ad.dual_level():
        y = dual(lib) * 1
        view = y[1:]
        view.zero_()
        y[0] = 5.0
        return both(lib, y, view)


@program
def a_write_to_the_dual_and_its_primal(lib):
    with lib.forward_ad.dual_level():
        x = lib.tensor([1.0, 2.0])
        d = lib.forward_ad.make_dual(x, lib.tensor([1.0, 10.0]))
        d *= 3
        return both(lib, x, d)


@program
def a_write_to_a_view_of_the_dual(lib):
    with lib.forward_ad.dual_level():
        x = lib.tensor([1.0, 2.0])
        d = lib.forward_ad.make_dual(x, lib.tensor([1.0, 10.0]))
        d[:1] *= d[1:]
        return both(lib, x, d)


@program
def histories_of_views(lib):
    with lib.forward_ad.dual_level():
        x, d = leaf_and_dual(lib)
        y = d * 1
        view = y[1:]
        view *= x[:2]
        y[0] = x[1] * d[2]
        t = tangent(lib, y)
        found = lib.grad(t.sum(), x, retain_graph=True)
        return lib.array(y), lib.array(t), lib.array(tangent(lib, view)), found


# -- in-place work --------------------------------------------------------------------------------


@program
def augmented_assignment(lib):
    with lib.forward_ad.dual_level():
        y = dual(lib) * 1
        y += dual(lib)
        y -= 2.0
        y *= y.clone()
        y /= dual(lib)
        return both(lib, y)


@program
def a_dual_value_into_a_work_array(lib):
    with lib.forward_ad.dual_level():
        u = lib.zeros(5)
        u[1:-1] = dual(lib)
        first = both(lib, u.clone())
        u[1:-1] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
        u[0] = u[1]
        return first, both(lib, u)


@program
def a_plain_value_into_a_dual(lib):
    with lib.forward_ad.dual_level():
        y = dual(lib) * 1
        y[1] = 7.0
        y[:1] = lib.tensor([3.0])
        return both(lib, y)


@program
def augmented_by_a_dual(lib):
    with lib.forward_ad.dual_level():
        u = lib.ones(3)
        u *= dual(lib)
        v = lib.ones(2, 3)
        v += dual(lib)
        v[0] -= dual(lib)[1]
        return both(lib, u, v)


@program
def copies_in_place(lib):
    with lib.forward_ad.dual_level():
        u, v, w = lib.zeros(3), dual(lib) * 1, lib.zeros(2, 3)
        u.copy_(dual(lib))
        v.copy_(lib.tensor([4.0, 5.0, 6.0]))
        w.copy_(dual(lib)[:1])
        return both(lib, u, v, w)


@program
def zeros_and_fills(lib):
    with lib.forward_ad.dual_level():
        a, b, c = (dual(lib) * 1 for _ in range(3))
        a.zero_()
        b.fill_(2.0)
        c.mul_(2).add_(b).neg_()
        return both(lib, a, b, c, a + c)


@program
def functions_in_place(lib):
    with lib.forward_ad.dual_level():
        y = dual(lib) * 1
        y.mul_(y.clone()).exp_().sqrt_()
        y.clip_(0.0, 50.0)
        return both(lib, y)


@program
def a_copy_in_place_to_another_dtype(lib):
    with lib.forward_ad.dual_level():
        u = lib.zeros(3, dtype="float32")
        u.copy_(dual(lib))
        u[0] = dual(lib)[1]
        return lib.array(u), lib.array(lib.astype(tangent(lib, u), "float32"))


@program
def integers_in_a_position(lib):
    with lib.forward_ad.dual_level():
        u = lib.zeros(4)
        u[lib.index(3, 0)] = dual(lib)[1:]
        u[u > 2.5] *= 2.0
        return both(lib, u)


@program
def aliases(lib):
    with lib.forward_ad.dual_level():
        x = dual(lib) * 1
        others = [x + 0, x * 1, x.clone(), lib.stack([x])[0], lib.concatenate([x]), x / 1]
        for k, z in enumerate(others):
            z[k % 3] = 5.0
        return both(lib, x, *others)


@program
def one_tangent_for_two(lib):
    with lib.forward_ad.dual_level():
        t = lib.tensor([1.0, 2.0])
        a = lib.forward_ad.make_dual(lib.tensor([1.0, 2.0]), t) * 1
        b = lib.forward_ad.make_dual(lib.tensor([5.0, 2.0]), t) * 1
        a[0] = 0.0
        return both(lib, a, b), t


@program
def histories_of_writes(lib):
    with lib.forward_ad.dual_level():
        x, d = leaf_and_dual(lib)
        u = lib.zeros(4)
        u[1:] = d * d
        u[:-1] += x
        u.mul_(2)
        t = tangent(lib, u)
        return (
            lib.array(u),
            lib.array(t),
            lib.grad(t.sum(), x, retain_graph=True),
            lib.grad(u.sum(), x),
        )


@program(raises=True)
def a_write_to_a_leaf(lib):
    with lib.forward_ad.dual_level():
        lib.tensor([1.0, 2.0, 3.0], True).mul_(dual(lib))


@program(raises="a view of a leaf Variable that requires grad is being used in an in-place")
def a_write_to_the_dual_of_a_leaf(lib):
    with lib.forward_ad.dual_level():
        _, d = leaf_and_dual(lib)
        d *= 2


@program
def transposed_in_place(lib):
    with lib.forward_ad.dual_level():
        y = matrix(lib) * 1
        y.t_()
        y[0] *= 2
        return both(lib, y)


# -- reverse mode in a level ----------------------------------------------------------------------


@program
def tangents_of_gradients(lib):
    with lib.forward_ad.dual_level():
        x, d = leaf_and_dual(lib)
        y = (d**3 * d.sin()).sum()
        (plain,) = lib.grad(y, x, retain_graph=True)
        (recorded,) = lib.grad(y, x, create_graph=True)
        return [
            *(lib.array(plain), tangent(lib, plain), plain.requires_grad),
            *(lib.array(recorded), lib.array(tangent(lib, recorded)), recorded.requires_grad),
        ]


@program
def gradients_of_tangents_of_gradients(lib):
    with lib.forward_ad.dual_level():
        x, d = leaf_and_dual(lib)
        (g,) = lib.grad((d**4).sum(), x, create_graph=True)
        t = tangent(lib, g)
        (third,) = lib.grad(t.sum(), x, create_graph=True)
        (fourth,) = lib.grad(third.sum(), x)
        return [lib.array(v) for v in (g, t, third, fourth)], tangent(lib, t)


@program
def third_order(lib):
    with lib.forward_ad.dual_level():
        x, d = leaf_and_dual(lib)
        y = lib.exp(d * x).sum()
        (g,) = lib.grad(y, x, create_graph=True)
        (h,) = lib.grad((g * g).sum(), x, create_graph=True)
        return lib.array(h), lib.array(tangent(lib, h)), lib.array(lib.grad(h.sum(), x)[0])


@program
def backward_in_a_level(lib):
    with lib.forward_ad.dual_level():
        x, d = leaf_and_dual(lib)
        (d * d).sum().backward()
        first = lib.array(x.grad)
        (d * d).sum().backward()
        return first, lib.array(x.grad)


@program
def backward_after_the_level(lib):
    with lib.forward_ad.dual_level():
        x, d = leaf_and_dual(lib)
        y = (d**3).sum()
        t = tangent(lib, y)
    y.backward(retain_graph=True)
    first = lib.array(x.grad)
    t.backward()
    return first, lib.array(x.grad), tangent(lib, x.grad)


@program
def dual_cotangents(lib):
    with lib.forward_ad.dual_level():
        x = lib.tensor([1.0, 2.0, 3.0], True)
        y = x * x
        (g,) = lib.grad(y, x, dual(lib), retain_graph=True)
        z, e = leaf_and_dual(lib)
        (h,) = lib.grad(e * e, z, dual(lib, (4.0, 5.0, 6.0), (1.0, 0.0, 2.0)))
        return both(lib, g, h)


@program
def a_graph_from_before_the_level(lib):
    x = lib.tensor([1.0, 2.0, 3.0], True)
    y = lib.exp(x) * x
    with lib.forward_ad.dual_level():
        (g,) = lib.grad(y, x, dual(lib))
        return both(lib, g)


@program
def hooks_on_tensors(lib):
    seen = []
    with lib.forward_ad.dual_level():
        x, d = leaf_and_dual(lib)
        y = d * d
        y.register_hook(lambda g: seen.append((lib.array(g), tangent(lib, g))))
        y.register_hook(lambda g: g * d.detach() * 2)
        (g,) = lib.grad((y * d).sum(), x)
        return seen, both(lib, g)


@program
def hooks_that_return_duals(lib):
    with lib.forward_ad.dual_level():
        x = lib.tensor([1.0, 2.0, 3.0], True)
        y = x * x
        y.register_hook(lambda g: g * dual(lib))
        (g,) = lib.grad(y.sum(), x)
        return both(lib, g)


@program
def retained_gradients(lib):
    with lib.forward_ad.dual_level():
        x, d = leaf_and_dual(lib)
        y = d * d
        y.retain_grad()
        (y**2).sum().backward()
        return lib.array(y.grad), lib.array(x.grad)


@program
def saved_tensors_hooks(lib):
    seen = []

    def pack(t):
        seen.append(lib.array(t))
        return t

    with lib.forward_ad.dual_level(), lib.graph.saved_tensors_hooks(pack, lambda t: t):
        x, d = leaf_and_dual(lib)
        y = lib.exp(d)
        (g,) = lib.grad(y.sum(), x)
        return both(lib, g)


@program(raises=True)
def a_saved_value_was_written(lib):
    with lib.forward_ad.dual_level():
        x, d = leaf_and_dual(lib)
        y = d * 1
        z = y**3
        y *= 2
        lib.grad(tangent(lib, z).sum(), x)


@program
def no_history_of_a_tangent(lib):
    with lib.forward_ad.dual_level():
        _, d = leaf_and_dual(lib)
        y = -d[1:]
        return both(lib, y), tangent(lib, y).requires_grad


@program
def gradients_of_complex_numbers(lib):
    with lib.forward_ad.dual_level():
        x, d = leaf_and_dual(lib)
        z = lib.exp(d * 1j) * d
        (g,) = lib.grad((z * z).real.sum(), x, create_graph=True)
        found = lib.array(g), lib.array(tangent(lib, g))
        return found, lib.grad(tangent(lib, z).imag.sum(), x)


# -- Functions ------------------------------------------------------------------------------------


def cube_forward(ctx, x):
    ctx.save_for_backward(x)
    ctx.save_for_forward(x)
    return x**3


def cube_backward(ctx, g):
    return g * 3 * ctx.saved_tensors[0] ** 2


def cube_jvp(ctx, t):
    return t * 3 * ctx.saved_tensors[0] ** 2


def cube(lib):
    return lib.make(cube_forward, cube_backward, jvp=cube_jvp)


@program
def a_function(lib):
    F = cube(lib)
    with lib.forward_ad.dual_level():
        first = both(lib, F.apply(dual(lib)), F.apply(dual(lib) * 2)[1:])
        x, d = leaf_and_dual(lib)
        y = F.apply(d)
        (g,) = lib.grad(y.sum(), x, create_graph=True)
        t = tangent(lib, y)
        found = [lib.array(v) for v in (y, t, g, tangent(lib, g))]
        return first, found, lib.grad(t.sum(), x, retain_graph=True)


@program
def functions_of_functions(lib):
    F = cube(lib)

    def forward(ctx, x):
        y = F.apply(x)
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return y * 2

    G = lib.make(
        forward,
        lambda ctx, g: g * 2 * 3 * ctx.saved_tensors[0] ** 2,
        jvp=lambda ctx, t: 2 * F.apply(t) * 0 + t * 6 * ctx.saved_tensors[0] ** 2,
    )
    with lib.forward_ad.dual_level():
        return both(lib, G.apply(F.apply(dual(lib))))


@program
def a_function_of_several_arguments(lib):
    def forward(ctx, x, k, y):
        ctx.save_for_forward(x, y)
        ctx.k = k
        return x * y * k

    def jvp(ctx, tx, tk, ty):
        x, y = ctx.saved_tensors
        return (tx * y + x * ty) * ctx.k + (0 if tk is None else 1)

    F = lib.make(forward, jvp=jvp)
    with lib.forward_ad.dual_level():
        x = lib.tensor([1.0, 2.0, 3.0])
        return both(lib, F.apply(dual(lib), 3, x), F.apply(x, 2, dual(lib)), F.apply(x, 1, x))


@program
def tangents_that_are_not_materialized(lib):
    seen = []

    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        return x + 2 * y

    def jvp(ctx, tx, ty):
        seen.append((tx is None, ty is None))
        return tx if ty is None else 2 * ty

    F = lib.make(forward, jvp=jvp)
    with lib.forward_ad.dual_level():
        x = lib.tensor([1.0, 2.0, 3.0])
        return both(lib, F.apply(dual(lib), x), F.apply(x, dual(lib))), seen


@program
def several_outputs(lib):
    def forward(ctx, x):
        y, z = lib.sin(x), lib.cos(x)
        ctx.save_for_backward(y, z)
        ctx.save_for_forward(y, z)
        return y, z

    def backward(ctx, g, h):
        y, z = ctx.saved_tensors
        return g * z - h * y

    def jvp(ctx, t):
        y, z = ctx.saved_tensors
        return t * z, -t * y

    F = lib.make(forward, backward, jvp=jvp)
    with lib.forward_ad.dual_level():
        first = both(lib, *F.apply(dual(lib)))
        x, d = leaf_and_dual(lib)
        y, z = F.apply(d)
        (g,) = lib.grad((y * z).sum(), x)
        return first, both(lib, g)


@program
def an_output_that_is_not_differentiable(lib):
    def forward(ctx, x):
        y = x * 3
        ctx.mark_non_differentiable(y)
        return x * 2, y, lib.argmax(x)

    F = lib.make(forward, jvp=lambda ctx, t: (t * 2, None, None))
    with lib.forward_ad.dual_level():
        return both(lib, *F.apply(dual(lib)))


@program
def a_setup_context(lib):
    F = lib.make(
        lambda x: x**2,
        lambda ctx, g: g * 2 * ctx.saved_tensors[0],
        lambda ctx, inputs, output: (
            ctx.save_for_backward(*inputs),
            ctx.save_for_forward(*inputs),
        ),
        jvp=lambda ctx, t: t * 2 * ctx.saved_tensors[0],
    )
    with lib.forward_ad.dual_level():
        x, d = leaf_and_dual(lib)
        y = F.apply(d)
        return lib.array(y), lib.array(tangent(lib, y)), both(lib, *lib.grad(y.sum(), x))


@program
def a_dirty_input(lib):
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        x.mul_(y)
        return x

    def jvp(ctx, tx, ty):
        tx.mul_(2).add_(ty)
        return tx

    F = lib.make(forward, jvp=jvp)
    with lib.forward_ad.dual_level():
        u = dual(lib) * 1
        z = F.apply(u, dual(lib))
        return z is u, both(lib, u)


@program(raises="An inplace custom Function is not modifying the forward mode gradients inplace")
def a_dirty_input_whose_tangent_is_new(lib):
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    with lib.forward_ad.dual_level():
        lib.make(forward, jvp=lambda ctx, t: t * 2).apply(dual(lib) * 1)


@program
def arguments_without_tangents(lib):
    seen = []

    def jvp(ctx, t, *others):
        seen.extend(others)
        return t * 2

    F = lib.make(lambda ctx, x, *others: x * 2, jvp=jvp)
    with lib.forward_ad.dual_level():
        F.apply(dual(lib), lib.index(1, 2), lib.tensor([1.0]), 3, None)
    return seen


@program(raises=True)
def no_jvp(lib):
    with lib.forward_ad.dual_level():
        lib.make(lambda ctx, x: x * 2, lambda ctx, g: g * 2).apply(dual(lib))


@program
def no_jvp_and_no_dual(lib):
    with lib.forward_ad.dual_level():
        y = lib.make(lambda ctx, x: x * 2, lambda ctx, g: g * 2).apply(lib.tensor([1.0]))
        return both(lib, y)


@program(raises="returned an invalid number of forward gradients")
def too_few_tangents(lib):
    F = lib.make(lambda ctx, x: (x * 2, x * 3), jvp=lambda ctx, t: t * 2)
    with lib.forward_ad.dual_level():
        F.apply(dual(lib))


@program(raises="returned an invalid number of forward gradients")
def too_many_tangents(lib):
    F = lib.make(lambda ctx, x: x * 2, jvp=lambda ctx, t: (t * 2, t))
    with lib.forward_ad.dual_level():
        F.apply(dual(lib))


@program(raises="Trying to set a forward gradient that has a different size")
def a_tangent_of_another_shape(lib):
    F = lib.make(lambda ctx, x: x * 2, jvp=lambda ctx, t: t[:1] * 2)
    with lib.forward_ad.dual_level():
        F.apply(dual(lib))


@program
def a_function_in_a_backward_pass(lib):
    F = cube(lib)
    with lib.forward_ad.dual_level():
        x, d = leaf_and_dual(lib)
        G = lib.make(lambda ctx, x: x * 2, lambda ctx, g: F.apply(g) * 2, jvp=lambda ctx, t: t * 2)
        (g,) = lib.grad((G.apply(d) * d).sum(), x)
        return both(lib, g)


@program
def forward_sees_no_tangents(lib):
    seen = []

    def forward(ctx, x):
        seen.append((tangent(lib, x), tangent(lib, x * 2)))
        return x * 2

    F = lib.make(forward, jvp=lambda ctx, t: (seen.append(tangent(lib, t)), t * 2)[1])
    with lib.forward_ad.dual_level():
        return both(lib, F.apply(dual(lib))), len(seen)


@program
def a_view_as_output(lib):
    F = lib.make(lambda ctx, x: x[1:], jvp=lambda ctx, t: t[1:])
    with lib.forward_ad.dual_level():
        y = dual(lib) * 1
        return both(lib, F.apply(y), y)


@program
def an_input_as_output(lib):
    F = lib.make(lambda ctx, x: x, jvp=lambda ctx, t: t.view_as(t) if lib.name == "torch" else t)
    with lib.forward_ad.dual_level():
        y = dual(lib) * 1
        return both(lib, F.apply(y), y)


@program(raises="but the corresponding forward output is not a differentiable Tensor")
def a_tangent_of_what_is_not_differentiable(lib):
    def forward(ctx, x):
        ctx.mark_non_differentiable(x)
        return x

    F = lib.make(forward, jvp=lambda ctx, t: t)
    with lib.forward_ad.dual_level():
        F.apply(dual(lib) * 1)


@program
def a_generator_without_grad_ends_in_the_level(lib):
    def numbers():
        with lib.no_grad():
            yield from range(5)

    generator = numbers()
    with lib.enable_grad():  # the modes are left in another order than they were entered
        next(generator)
        with lib.enable_grad(), lib.forward_ad.dual_level():
            d = dual(lib)
            generator.close()
            return both(lib, d * 2)


@program
def an_exception_leaves_no_grad_in_the_level(lib):
    def fails():
        with lib.no_grad():
            raise ValueError("within")

    with lib.forward_ad.dual_level():
        d = dual(lib)
        error = lib.attempt(fails)
        return error, both(lib, d * 2)


# -- batches, transforms and the functional module ------------------------------------------------


def vmap(lib):
    return lib.package.vmap


@program
def duals_into_a_batch(lib):
    with lib.forward_ad.dual_level():
        return both(lib, vmap(lib)(lambda row: row * row.sum())(matrix(lib)))


@program
def duals_captured_by_a_batch(lib):
    with lib.forward_ad.dual_level():
        d = dual(lib)
        x = lib.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        return both(lib, vmap(lib)(lambda row: lib.sin(row) * d)(x))


@program
def writes_in_a_batch(lib):
    def f(row):
        y = row * 1
        y[0] = row[1] * row[0]
        y *= row
        return y

    with lib.forward_ad.dual_level():
        return both(lib, vmap(lib)(f)(matrix(lib)))


@program
def the_gradient_of_a_function(lib):
    with lib.forward_ad.dual_level():
        d = dual(lib)
        g = lib.package.func.grad(lambda x: (x**3 * d).sum())(d)
        return both(lib, g)


@program
def the_vjp_of_a_function(lib):
    with lib.forward_ad.dual_level():
        d = dual(lib)
        y, pull = lib.package.func.vjp(lambda x: x**3, d)
        return both(lib, y, *pull(d))


@program
def the_jacobian_of_a_function(lib):
    with lib.forward_ad.dual_level():
        d = dual(lib)
        return both(lib, lib.package.func.jacrev(lambda x: x**2 * d.sum())(d))


@program
def gradients_of_a_batch(lib):
    with lib.forward_ad.dual_level():
        f = lib.package.func.grad(lambda row: (row**3).sum())
        return both(lib, vmap(lib)(f)(matrix(lib)))


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
