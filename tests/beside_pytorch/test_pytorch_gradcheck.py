"""gradcheck and gradgradcheck: the same verdicts, errors and warnings in both libraries."""

import re

import numpy as np
import pytest
from libraries import Programs, tapegrad_library, torch_library

torch = pytest.importorskip("torch")

program = Programs()
old_torch = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # its own affair
both_modes = pytest.mark.parametrize("fast", [False, True], ids=["slow", "fast"])


def leaf(lib, data=(0.5, 1.5), dtype="float64"):
    return lib.tensor(list(data), True, dtype)


def pointwise(lib, backward, forward=lambda x: x * x):
    """A Function of one tensor with a backward of (g, x)."""

    def save(ctx, x):
        ctx.save_for_backward(x)
        return forward(x)

    return lib.make(save, lambda ctx, g: backward(g, *ctx.saved_tensors)).apply


def undefined(lib, backward):
    """A Function whose backward gets None for undefined gradients."""

    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2

    return lib.make(forward, lambda ctx, g: backward(g)).apply


# -- verdicts -------------------------------------------------------------------------------------

FUNCTIONS = {
    "op": lambda lib: lib.exp,
    "identity": lambda lib: lambda x: x,
    "element": lambda lib: lambda x: x[1],
    "sum": lambda lib: lambda x: (x * x).sum(),
    "constant": lambda lib: lambda x: lib.ones(2),
    "constant beside": lambda lib: lambda x: (x * x, lib.ones(2)),
    "several": lambda lib: lambda x: (x * 2, x * x),
    "list": lambda lib: lambda x: [x * 2, x * x],
    "right": lambda lib: pointwise(lib, lambda g, x: 2 * g * x),
    "detached": lambda lib: lambda x: x.detach() * 2,
    "partly detached": lambda lib: lambda x: x * x.detach(),
    "factor": lambda lib: pointwise(lib, lambda g, x: 3 * g * x),
    "sign": lambda lib: pointwise(lib, lambda g, x: -2 * g * x),
    "none": lambda lib: pointwise(lib, lambda g, x: None),
    "one": lambda lib: pointwise(lib, lambda g, x: g),
    "nan": lambda lib: pointwise(lib, lambda g, x: g * float("nan")),
    "infinite": lambda lib: lambda x: x * float("inf"),
    "not linear": lambda lib: pointwise(lib, lambda g, x: 2 * g * x + 1e-9),
    "a little off": lambda lib: pointwise(lib, lambda g, x: 2.001 * g * x),
    "too far off": lambda lib: pointwise(lib, lambda g, x: 2.01 * g * x),
    "undefined as zeros": lambda lib: undefined(lib, lambda g: None if g is None else g * 2),
}


def square_with_tangent(lib, rate, **rules):
    """A Function x * x with a jvp; `rate` of (x, t) is its tangent."""

    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x * x

    def jvp(ctx, t):
        return rate(ctx.saved_tensors[0], t)

    return lib.make(forward, lambda ctx, g: 2 * g * ctx.saved_tensors[0], jvp=jvp, **rules).apply


def rule_of_duals(lib, rate):
    """x * x, with a tangent of its own if x has one."""

    def f(x):
        primal, t = lib.forward_ad.unpack_dual(x)
        if t is None:
            return x * x
        return lib.forward_ad.make_dual(primal * primal, rate(primal, t))

    return f


def dependent_on_the_tangent(lib):
    """x, y -> x y, with a tangent that is wrong if x has none."""

    def f(x, y):
        xt = lib.forward_ad.unpack_dual(x).tangent
        py, yt = lib.forward_ad.unpack_dual(y)
        if yt is None or xt is not None:
            return x * y
        return lib.forward_ad.make_dual(x * py, 3.0 * x * yt)

    return lambda x: f(x[:1], x[1:])


FORWARD = {
    "right jvp": lambda lib: square_with_tangent(lib, lambda x, t: 2 * x * t),
    "wrong jvp": lambda lib: square_with_tangent(lib, lambda x, t: 3 * x * t),
    "right rule of duals": lambda lib: rule_of_duals(lib, lambda x, t: 2 * x * t),
    "wrong rule of duals": lambda lib: rule_of_duals(lib, lambda x, t: 3 * x * t),
    "a part of it": dependent_on_the_tangent,
    "only of what has a history": lambda lib: lambda x: x * x if x.requires_grad else x * 2,
    "a level inside": lambda lib: lib.forward_ad.dual_level()(lambda x: x * x),
}


def verdict(lib, check, name, **options):
    """What a check returns, or type and first line of its error."""
    try:
        with np.errstate(all="ignore"):
            return check((FUNCTIONS | FORWARD)[name](lib), leaf(lib), **options)
    except RuntimeError as error:
        return type(error).__name__, str(error).splitlines()[0]


@both_modes
@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_verdict(name, fast):
    for raises in (True, False):
        options = {"fast_mode": fast, "raise_exception": raises}
        ours, theirs = (
            verdict(lib, lib.gradcheck, name, **options)
            for lib in (tapegrad_library(), torch_library())
        )
        assert ours == theirs


@both_modes
@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"constant", "detached"}))
def test_same_verdict_of_second_derivatives(name, fast):
    # PyTorch's gradgradcheck fails if no output requires gradients
    options = {"fast_mode": fast, "raise_exception": False}
    ours, theirs = (
        verdict(lib, lib.gradgradcheck, name, **options)
        for lib in (tapegrad_library(), torch_library())
    )
    assert ours == theirs


@old_torch
@both_modes
@pytest.mark.parametrize("backward", [False, True], ids=["forward mode", "both modes"])
@pytest.mark.parametrize(
    "name", [*sorted(FUNCTIONS.keys() - {"constant", "detached", "constant beside"}), *FORWARD]
)
def test_same_verdict_of_forward_mode(name, backward, fast):
    options = {"fast_mode": fast, "check_forward_ad": True, "check_backward_ad": backward}
    ours, theirs = (
        verdict(lib, lib.gradcheck, name, **options)
        for lib in (tapegrad_library(), torch_library())
    )
    assert ours == theirs


@old_torch
@both_modes
@pytest.mark.parametrize(
    "name", ["op", "sum", "element", "several", "right jvp", "wrong jvp", "right", "factor"]
)
def test_same_verdict_of_forward_over_reverse_mode(name, fast):
    options = {"fast_mode": fast, "check_fwd_over_rev": True, "raise_exception": False}
    ours, theirs = (
        verdict(lib, lib.gradgradcheck, name, **options)
        for lib in (tapegrad_library(), torch_library())
    )
    assert ours == theirs


@program(raises="Mismatch in tangent values for output with index: ")
def undefined_tangents(lib):
    def f(x, y):
        (px, xt), (py, yt) = map(lib.forward_ad.unpack_dual, (x, y))
        if yt is None or xt is not None:
            return x * y
        return lib.forward_ad.make_dual(px * py, 3.0 * px * yt)

    lib.gradcheck(f, (leaf(lib), leaf(lib, (1.0, 2.0))), check_forward_ad=True)


def jacobians(text):
    """The numbers of the two Jacobians in an error of the slow mode."""
    numerical, analytical = text.split("numerical:")[1].split("analytical:")
    return [
        [float(number) for number in re.findall(r"-?\d+\.\d*(?:e[+-]\d+)?", part)]
        for part in (numerical, analytical)
    ]


@pytest.mark.parametrize("name", ["factor", "sign", "none", "one", "partly detached"])
def test_same_jacobians_in_the_text(name):
    found = []
    for lib in (tapegrad_library(), torch_library()):
        with pytest.raises(RuntimeError) as caught:
            lib.gradcheck(FUNCTIONS[name](lib), leaf(lib))
        found.append(jacobians(str(caught.value)))
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)


# -- texts and warnings ---------------------------------------------------------------------------


@program(raises="gradcheck expects at least one input tensor to require gradient, but none of them")
def no_input_requires_gradients(lib):
    lib.gradcheck(lib.exp, lib.tensor([1.0]), raise_exception=False)


@program(raises="The 0th input has a dimension with stride 0. gradcheck only supports inputs that")
def elements_that_share_memory(lib):
    x = lib.tensor([1.0], True)
    lib.gradcheck(lib.exp, lib.broadcast_to(x, (3,)))


@program(raises="Expected at least one of check_forward_ad or check_backward_ad to be True")
def nothing_to_check(lib):
    lib.gradcheck(lib.exp, leaf(lib), check_backward_ad=False)


@program(raises="Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True")
def nothing_to_check_twice(lib):
    lib.gradgradcheck(lib.exp, leaf(lib), check_rev_over_rev=False)


@program(
    raises="Expected `func` to return outputs with the same shape when inputs are perturbed on"
)
def a_shape_that_changes(lib):
    lib.gradcheck(lambda x: (x * 2)[: 1 + (x[0].item() > 0.5)], leaf(lib))


@program(
    raises="Expected `func` to return outputs with the same shape when inputs are perturbed by"
)
def a_shape_that_changes_in_fast_mode(lib):
    lib.gradcheck(lambda x: (x * 2)[: 1 + (x[0].item() > 0.5)], leaf(lib), fast_mode=True)


@program(
    raises="Expected `func` to return outputs with the same dtype when inputs are perturbed on"
)
def a_dtype_that_changes(lib):
    def f(x):
        return x * 2 if x[0].item() > 0.5 else lib.astype(x * 2, "float32")

    lib.gradcheck(f, leaf(lib))


@program(raises="Backward is not reentrant, i.e., running backward with same input and grad_output")
def not_deterministic(lib):
    noise = iter(range(1, 1000))
    lib.gradcheck(pointwise(lib, lambda g, x: 2 * g * x + g * 1e-9 * next(noise)), leaf(lib))


@program
def not_deterministic_within_the_tolerance(lib):
    noise = iter(range(1, 1000))
    f = pointwise(lib, lambda g, x: 2 * g * x + g * 1e-9 * next(noise))
    return lib.gradcheck(f, leaf(lib), nondet_tol=1e-5)


@program(raises="backward not multiplied by grad_output")
def not_multiplied_by_the_cotangent(lib):
    lib.gradcheck(FUNCTIONS["not linear"](lib), leaf(lib))


@program(raises="Expected backward function to handle undefined output grads.")
def undefined_gradients_that_are_refused(lib):
    def backward(g):
        if g is None:
            raise RuntimeError("no gradient")
        return g * 2

    lib.gradcheck(undefined(lib, backward), leaf(lib))


@program(raises="Expected all input grads to be undefined or zero when all output grads are")
def undefined_gradients_as_ones(lib):
    lib.gradcheck(undefined(lib, lambda g: lib.ones(2) if g is None else g * 2), leaf(lib))


@program(warns="New undefined gradient support checking feature is enabled by default")
def undefined_gradients_warn(lib):
    f = undefined(lib, lambda g: lib.ones(2) if g is None else g * 2)
    return lib.gradcheck(f, leaf(lib), raise_exception=False)


@program
def undefined_gradients_are_not_checked(lib):
    f = undefined(lib, lambda g: lib.ones(2) if g is None else g * 2)
    return lib.gradcheck(f, leaf(lib), check_undefined_grad=False)


@program(warns=True)
def single_precision_warns(lib):
    return lib.gradcheck(lambda x: x * 2, leaf(lib, dtype="float32"), eps=1e-2, atol=1e-2)


@program(warns=True)
def single_precision_warns_for_cotangents(lib):
    return lib.gradgradcheck(lambda x: x * x, leaf(lib, dtype="float32"), eps=1e-2, atol=1e-1)


@program(raises="got 2 tensors and 1 gradients")
def a_wrong_number_of_cotangents(lib):
    lib.gradgradcheck(lambda x: (x, x * x), leaf(lib), [leaf(lib)])


@program
def given_cotangents(lib):
    g = leaf(lib, [1.0, -2.0])
    wrong = pointwise(lib, lambda g, x: 2 * g * x.detach())
    return [
        lib.gradgradcheck(f, leaf(lib), given, raise_exception=False)
        for f in (lib.exp, wrong, lambda x: x * 2)
        for given in (g, g.detach(), [g])
    ]


@program
def what_the_function_sees(lib):
    seen = []

    def f(x, n):
        seen.append([x.requires_grad, x.is_leaf, lib.is_grad_enabled(), n])
        return lib.exp(x)

    x = leaf(lib)
    lib.gradcheck(f, (x, 3))
    lib.gradcheck(f, (x, 3), fast_mode=True)
    return seen, x.grad is None, x


@program
def a_function_that_holds_its_input(lib):
    x = leaf(lib)
    return lib.gradcheck(lambda _: x * x, x)


@program
def views(lib):
    x = leaf(lib, [0.5, 1.0, -1.0, 2.0])
    return [lib.gradcheck(lib.exp, v) for v in (x[::2], x[1], x.reshape(2, 2).T)]


@program
def no_elements(lib):
    x = leaf(lib, [])
    return [lib.gradcheck(lambda x: (lib.exp(x), x.sum()), x, fast_mode=f) for f in (False, True)]


@program
def small_differences_in_fast_mode(lib):
    signs = lib.tensor([1.0, -1.0] * 100)
    f = pointwise(lib, lambda g, x: g * (signs + 5e-4), lambda x: x * signs)
    x = leaf(lib, [1.0] * 200)
    options = {"atol": 0.0, "raise_exception": False}
    return lib.gradcheck(f, x, **options), lib.gradcheck(f, x, fast_mode=True, **options)


# -- complex numbers ------------------------------------------------------------------------------

COMPLEX = {
    "op": lambda lib: lib.exp,
    "product": lambda lib: lambda z: z * z * 2j,
    "modulus": lambda lib: lambda z: lib.abs(z),
    "not conjugate": lambda lib: pointwise(lib, lambda g, z: 2 * g * z),
    "constant": lambda lib: lambda z: z.detach() * 1j,
    "two": lambda lib: lambda z: (lib.abs(z), pointwise(lib, lambda g, z: 2 * g * z)(z)),
}


@both_modes
@pytest.mark.parametrize("name", COMPLEX)
def test_same_verdict_for_complex_numbers(name, fast):
    found = []
    for lib in (tapegrad_library(), torch_library()):
        z = leaf(lib, [1.0 + 2.0j, 0.5 - 1.0j], "complex128")
        try:
            found.append(lib.gradcheck(COMPLEX[name](lib), z, fast_mode=fast))
        except RuntimeError as error:
            found.append((type(error).__name__, str(error).splitlines()[0]))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
