"""What programs do with complex tensors, on both libraries."""

import warnings

import pytest
from complex_values import M, W, both, constant, leaf, power_of, second, value
from libraries import Programs

pytest.importorskip("torch")
program = Programs()


# -- dtypes ---------------------------------------------------------------------------------------


@program
def from_real_to_complex(lib):
    x = leaf(lib, [1.0, -2.0], "float64")
    z = lib.astype(x, "complex128")
    return [z, *both(lib, lambda x: lib.astype(x, "complex128") * (1 + 2j), x)]


@program
def from_single_precision_to_complex(lib):
    x = leaf(lib, [1.0, -2.0], "float32")
    z = lib.astype(x, "complex64")
    (z * (1 + 2j)).imag.sum().backward()
    return z, x.grad


@program
def from_complex_to_real(lib):
    z = leaf(lib)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = lib.astype(z, "float64")
    (x * x).sum().backward()
    return x, value(lib, z.grad)


@program
def between_precisions(lib):
    z = leaf(lib, [1.0 + 2.0j, 0.5 - 1.0j], "complex64")
    w = lib.astype(z, "complex128")
    (w * w.conj()).real.sum().backward()
    return w, z.grad * 1


# -- cotangents and losses ------------------------------------------------------------------------


@program(raises="grad can be implicitly created only for real scalar outputs but got complex128")
def a_complex_loss(lib):
    (leaf(lib) * 2).sum().backward()


@program(raises="grad can be implicitly created only for real scalar outputs but got complex64")
def a_complex_loss_of_grad(lib):
    z = leaf(lib, [1j], "complex64")
    lib.grad(z * 2, z)


@program(raises="grad can be implicitly created only for scalar outputs")
def several_complex_losses(lib):
    leaf(lib).backward()


@program
def a_cotangent_makes_it_well_defined(lib):
    z = leaf(lib)
    (z * z).sum().backward(lib.tensor(1 - 2j, dtype="complex128"))
    return value(lib, z.grad)


@program(raises="For complex Tensors, both grad_output and output are required to have the same")
def a_real_cotangent_of_a_complex_output(lib):
    (leaf(lib) * 2).backward(lib.ones(3))


@program(raises="For complex Tensors, both grad_output and output are required to have the same")
def a_complex_cotangent_of_a_real_output(lib):
    abs(leaf(lib)).backward(constant(lib))


@program
def a_complex_leaf_accumulates(lib):
    z = leaf(lib)
    for _ in range(3):
        (abs(z) ** 2).sum().backward()
    before = z.grad
    (z * 1j).real.sum().backward()
    return value(lib, z.grad), before is z.grad


@program
def a_gradient_of_another_kind_is_refused(lib):
    z, x = leaf(lib), leaf(lib, [1.0, 2.0, 3.0], "float64")

    def set_real():
        z.grad = lib.ones(3)

    def set_complex():
        x.grad = constant(lib)

    return type(lib.attempt(set_real).error), type(lib.attempt(set_complex).error)


@program
def only_inputs(lib):
    z, w, x = leaf(lib), leaf(lib, W), leaf(lib, [1.0, 2.0, 3.0], "float64")
    y = z * w
    loss = (y * x).imag.sum()
    found = lib.grad(loss, [y, x], retain_graph=True)
    loss.backward(inputs=[w])
    return [*(g * 1 for g in found), z.grad, w.grad * 1]


# -- in-place work --------------------------------------------------------------------------------


@program
def in_place(lib):
    z, w = leaf(lib), leaf(lib, W)
    y = z * 1
    y += w
    y *= 2j
    y -= z
    y /= w
    y.mul_(1 + 1j).add_(z)
    return [y, *[value(lib, g) for g in lib.grad(power_of(y), [z, w])], y._version]


@program
def in_place_functions(lib):
    found = []
    for name in ("exp_", "sin_", "sqrt_", "neg_", "tanh_", "reciprocal_", "square_"):
        z = leaf(lib)
        y = z * 2
        getattr(y, name)()
        power_of(y).backward()
        found += [y, value(lib, z.grad)]
    return found


@program
def in_place_with_a_real_operand(lib):
    z, x = leaf(lib), leaf(lib, [1.0, 2.0, 3.0], "float64")
    y = z * 1
    y *= x
    y += x
    y[1:] -= x[:2] * 2
    power_of(y).backward()
    return y, value(lib, z.grad), x.grad


@program
def a_real_tensor_holds_no_complex_result(lib):
    y = leaf(lib, [1.0, 2.0, 3.0], "float64") * 1
    found = [lib.attempt(lambda: y.mul_(constant(lib))), lib.attempt(lambda: y.add_(1j))]
    return [isinstance(f.error, (RuntimeError, TypeError)) for f in found], y


@program
def item_assignment(lib):
    z, w = leaf(lib), leaf(lib, [2 - 1j, 1j])
    x = leaf(lib, [3.0, 4.0], "float64")
    y = z * 1
    y[0] = w[1]
    y[1:] = w * (y[1:] * 1)
    y[2] = x[0]
    loss = power_of(y)
    found = lib.grad(loss, [z, w, x])
    return [y, *[value(lib, g) for g in found]]


@program
def writing_through_the_parts(lib):
    z, x = leaf(lib), leaf(lib, [3.0, 4.0, 5.0], "float64")
    y = z * (1 + 1j)
    y.real[:] = x
    y.imag.mul_(x)
    y.imag[1:] += 1
    power_of(y).backward()
    return y, value(lib, z.grad), x.grad


@program
def a_part_of_a_view(lib):
    z = leaf(lib, M)
    y = z * 1
    part = y.T[0].imag
    part *= 10
    part[0] = 7.0
    power_of(y).backward()
    return y, part, value(lib, z.grad)


@program
def parts_see_what_is_written_to_the_whole(lib):
    z = leaf(lib)
    y = z * 1
    re, im = y.real, y.imag
    y *= 1j
    (re * re * im).sum().backward()
    return re, im, value(lib, z.grad)


@program
def parts_are_views(lib):
    z = leaf(lib, M)
    y = z * 1
    return [
        y.real._is_view(),
        y.imag._is_view(),
        y.real._base is y,
        y.T.imag._base is y,
        y.real._version,
        (y * 1)._is_view(),
        y.real.requires_grad,
    ]


@program(raises="modified by an inplace operation")
def a_saved_value_is_overwritten(lib):
    z = leaf(lib)
    y = z.exp()
    loss = abs(y).sum()
    y.imag[0] = 0.0
    loss.backward()


@program(raises="modified by an inplace operation")
def an_overwritten_view_was_saved(lib):
    z = leaf(lib)
    y = z * 1
    y[1:] = constant(lib, [2j, 1.0]) * z[1:] * y[1:]
    abs(y).sum().backward()


@program(raises="a leaf Variable that requires grad is being used in an in-place operation")
def a_leaf_is_written(lib):
    z = leaf(lib)
    z *= 1j


@program(raises="a view of a leaf Variable that requires grad is being used in an in-place")
def the_part_of_a_leaf_is_written(lib):
    leaf(lib).imag.mul_(2)


@program
def copied_into(lib):
    z, x = leaf(lib), leaf(lib, [3.0, 4.0, 5.0], "float64")
    y = z * 1
    y.copy_(x)
    power_of(y).backward()
    return y, value(lib, z.grad), x.grad


# -- hooks, modes, Functions ----------------------------------------------------------------------


@program
def hooks(lib):
    z = leaf(lib)
    seen = []
    y = z * (1 - 1j)
    y.register_hook(lambda g: seen.append(g * 1))
    y.register_hook(lambda g: g * 1j)
    y.retain_grad()
    z.register_hook(lambda g: g * 2)
    (abs(y) ** 2).sum().backward()
    return seen, value(lib, y.grad), value(lib, z.grad)


@program
def hooks_of_saved_values(lib):
    z = leaf(lib)
    packed = []

    def pack(t):
        packed.append(str(t.dtype))
        return t * 1

    with lib.graph.saved_tensors_hooks(pack, lambda t: t * 2):
        y = z.exp()
    (y * 1j).real.sum().backward()
    return packed, y, value(lib, z.grad)


@program
def anomaly_mode(lib):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with lib.detect_anomaly():
            z = leaf(lib)
            power_of(z * z / (z + 1j)).backward()
    return value(lib, z.grad)


@program
def not_recorded(lib):
    z = leaf(lib)
    with lib.no_grad():
        y = z * z.conj()
    d = z.detach()
    return y * 1, d, (d * 1j).requires_grad, z.real.detach(), d.imag


@program
def a_function(lib):
    def forward(ctx, z, x):
        ctx.save_for_backward(z, x)
        return z * x

    def backward(ctx, g):
        z, x = ctx.saved_tensors
        return g * x, (g * z.conj()).real

    f = lib.make(forward, backward)
    z, x = leaf(lib), leaf(lib, [1.0, 2.0, 3.0], "float64")
    return both(lib, f.apply, z, x), second(lib, f.apply, z, x)


@program
def a_complex_gradient_of_a_real_input_is_refused(lib):
    def forward(ctx, x):
        return x * (1 + 2j)

    f = lib.make(forward, lambda ctx, g: g * (1 - 2j))
    x = leaf(lib, [1.0, 2.0], "float64")
    return type(lib.attempt(f.apply(x).imag.sum().backward).error)


@program
def a_function_that_returns_a_real_gradient_of_a_complex_input(lib):
    f = lib.make(lambda ctx, z: z.real * 2, lambda ctx, g: g * 2)
    z = leaf(lib)
    f.apply(z).sum().backward()
    return value(lib, z.grad)


@program
def checkers(lib):
    z, x = leaf(lib), leaf(lib, [1.0, 2.0, 3.0], "float64")
    f = lambda z, x: (z * x).exp() / (1 + abs(z))  # noqa: E731
    return lib.gradcheck(f, (z, x)), lib.gradgradcheck(f, (z, x))


# -- larger programs ------------------------------------------------------------------------------


@program
def a_filter(lib):
    """A frequency response is fitted to a target."""
    taps = leaf(lib, [0.5, -0.25, 0.125], "float64")
    at = lib.tensor([0.0, 0.5, 1.0, 2.0])
    response = sum(t * lib.exp(at * (-1j * k)) for k, t in enumerate(taps))
    loss = (abs(response - lib.exp(at * -2j)) ** 2).mean()
    loss.backward()
    return response, loss, taps.grad


@program
def a_quantum_state(lib):
    """The expected value of an observable after a rotation."""
    angle = leaf(lib, 0.3, "float64")
    one = lib.tensor([1.0, 0.0], dtype="complex128")
    turn = lib.stack(
        [
            lib.stack([lib.cos(angle) + 0j, -1j * lib.sin(angle)]),
            lib.stack([-1j * lib.sin(angle), lib.cos(angle) + 0j]),
        ]
    )
    state = turn @ one
    observable = lib.tensor([[0.0, -1j], [1j, 0.0]], dtype="complex128")
    expected = lib.vdot(state, observable @ state).real
    (slope,) = lib.grad(expected, angle, create_graph=True)
    return expected, slope, lib.grad(slope, angle)[0]


@program
def an_iteration(lib):
    """Newton's method, through which the root is differentiated."""
    c = leaf(lib, 2.0 - 1.0j)
    z = lib.tensor(1.0 + 1.0j, dtype="complex128")
    for _ in range(6):
        z = z - (z**3 - c) / (3 * z**2)
    abs(z).backward()
    return z, value(lib, c.grad)


@program
def a_recurrent_network(lib):
    w, h = leaf(lib, M), lib.tensor([1.0 + 0j, 0.5j], dtype="complex128")
    for _ in range(4):
        h = w @ h
        h = h / (1 + abs(h))
    power_of(h).backward()
    return h, value(lib, w.grad)


@program
def a_spectrum(lib):
    """A discrete Fourier transform by its matrix; power by frequency."""
    x = leaf(lib, [1.0, -2.0, 0.5, 3.0], "float64")
    n = lib.tensor([0.0, 1.0, 2.0, 3.0])
    matrix = lib.exp(lib.outer(n, n) * (-0.5j * 3.141592653589793))
    spectrum = matrix @ (x + 0j)
    (abs(spectrum) ** 2 * n).sum().backward()
    return spectrum, x.grad


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)


def test_there_are_many():
    assert len(program) >= 40
