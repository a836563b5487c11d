"""Programs about what a backward returns, on both libraries."""

import pytest
from libraries import Programs, backward_of_saving, double, same, saving

pytest.importorskip("torch")
program = Programs()


# -- gradients ------------------------------------------------------------------------------------


@program
def none_and_extra_nones(lib):
    f = lib.make(lambda ctx, x, y: x * y, lambda ctx, g: (None, g * 2, None, None))
    x, y = lib.tensor([1.0], True), lib.tensor([2.0], True)
    return lib.grad(f.apply(x, y).sum(), [x, y], allow_unused=True)


@program(raises="appears to not have been used in the graph. Set allow_unused=True")
def none_is_unused(lib):
    x = lib.tensor([1.0], True)
    lib.grad(lib.make(double, lambda ctx, g: None).apply(x), x)


@program
def larger_gradients(lib):
    found = []
    for shape in [(3, 2), (1, 2), (2, 3, 2)]:
        x = lib.tensor([1.0, 2.0], True)
        f = lib.make(double, lambda ctx, g, shape=shape: lib.ones(*shape))
        found.append(lib.grad(f.apply(x).sum(), x))
    x = lib.tensor([[1.0], [2.0]], True)
    f = lib.make(double, lambda ctx, g: lib.ones(2, 3))
    return found, lib.grad(f.apply(x).sum(), x)


@program
def gradients_of_other_dtypes(lib):
    found = []
    for dtype in ("float32", "int64", "bool"):
        x = lib.tensor([1.0, 2.0], True)
        f = lib.make(double, lambda ctx, g, dtype=dtype: lib.ones(2, dtype=dtype))
        found.append(lib.grad(f.apply(x).sum(), x))
    return found


@program
def gradients_that_nobody_needs(lib):
    f = lib.make(lambda ctx, x, y: x * y, lambda ctx, g: (lib.ones(9), g))
    x, y = lib.tensor([1.0], True), lib.tensor([2.0], True)
    passive = f.apply(lib.tensor([1.0]), y)
    passive.backward()
    return y.grad, lib.grad(f.apply(x, y), y)


@program
def cotangent_changed_in_place(lib):
    x = lib.tensor([1.0, 2.0], True)
    lib.make(double, lambda ctx, g: g.mul_(3)).apply(x).backward(lib.ones(2))
    return x.grad


@program
def incorrect_numbers(lib):
    found = []
    x = lib.tensor([1.0], True)
    for result in ((x, x), (x, None, x), ()):
        y = lib.make(double, lambda ctx, g, result=result: result).apply(x)
        found.append(lib.attempt(y.backward))
    for result in (x, [x, x], None):
        y = lib.make(lambda ctx, x, y: x * y, lambda ctx, g, result=result: result).apply(x, x)
        found.append(lib.attempt(y.backward))
    return found


@program(raises="function FBackward returned an incorrect number of gradients (expected 1, got 2)")
def too_many_gradients(lib):
    lib.make(double, lambda ctx, g: (g, g)).apply(lib.tensor([1.0], True)).backward()


@program
def invalid_shapes(lib):
    found = []
    for shape in [(10,), (1,), (), (2, 1), (2, 3)]:
        f = lib.make(double, lambda ctx, g, shape=shape: lib.ones(*shape))
        y = f.apply(lib.tensor([1.0, 2.0], True))
        found.append(lib.attempt(y.sum().backward))
    return found


@program(
    raises="Function FBackward returned an invalid gradient at index 0 - got [10] but expected "
    "shape compatible with [5, 5]"
)
def invalid_shape(lib):
    x = lib.ones(5, 5).requires_grad_()
    lib.make(double, lambda ctx, g: lib.ones(10)).apply(x).sum().backward()


@program(raises="invalid gradient at index 1 - got [7] but expected shape compatible with [2]")
def invalid_shape_of_the_second(lib):
    x = lib.tensor([1.0, 2.0], True)
    f = lib.make(lambda ctx, x, y: x * y, lambda ctx, g: (g, lib.ones(7)))
    f.apply(x, x * 1).sum().backward()


@program
def gradients_that_are_no_tensors(lib):
    found = []
    for bad in (1.0, "x", [1.0], {}):
        y = lib.make(double, lambda ctx, g, bad=bad: bad).apply(lib.tensor([1.0], True))
        text = lib.attempt(y.backward).text
        found.append(text[text.index("expected Variable") :])
    return found


@program(raises="expected Variable or None (got float)")
def gradient_is_a_number(lib):
    lib.make(double, lambda ctx, g: 1.0).apply(lib.tensor([1.0], True)).backward()


@program(
    raises="function FBackward returned a gradient different than None at position 2, but the "
    "corresponding forward input was not a Variable"
)
def gradient_of_a_number(lib):
    f = lib.make(lambda ctx, x, n: x * n, lambda ctx, g: (g, g))
    f.apply(lib.tensor([1.0], True), 2.0).backward()


@program(raises="Implementing both 'backward' and 'vjp' for a custom Function is not allowed.")
def both_backward_and_vjp(lib):
    lib.make(double, same, vjp=same).apply(lib.tensor([1.0], True)).backward()


@program
def both_backward_and_vjp_may_run_forward(lib):
    return lib.make(double, same, vjp=same).apply(lib.tensor([1.0], True))


@program(raises="You must implement either the backward or vjp method for your custom")
def neither_backward_nor_vjp(lib):
    lib.make(double).apply(lib.tensor([1.0], True)).backward()


@program(raises="You must implement the forward function for custom")
def no_forward(lib):
    type("F", (lib.Function,), {}).apply(lib.tensor([1.0], True))


# -- once_differentiable --------------------------------------------------------------------------


def once(lib):
    return lib.make(saving, lib.function.once_differentiable(backward_of_saving))


@program
def once_differentiable_once(lib):
    x = lib.tensor([3.0], True)
    y = once(lib).apply(x)
    plain = lib.grad(y, x, retain_graph=True)
    (recorded,) = lib.grad(y, x, create_graph=True)
    return plain, recorded.detach()


@program
def once_differentiable_with_create_graph(lib):
    x = lib.tensor([3.0], True)
    return lib.grad((once(lib).apply(x) ** 2).sum(), x, create_graph=True)


@program(raises="trying to differentiate twice a function that was marked with")
def once_differentiable_twice(lib):
    x = lib.tensor([3.0], True)
    (g,) = lib.grad((once(lib).apply(x) ** 2).sum(), x, create_graph=True)
    g.backward()


@program
def once_differentiable_runs_without_recording(lib):
    seen = []

    def backward(ctx, g):
        seen.append(lib.is_grad_enabled())
        return g, None

    f = lib.make(lambda ctx, x, y: x * y, lib.function.once_differentiable(backward))
    x, y = lib.tensor([3.0], True), lib.tensor([2.0], True)
    z = (f.apply(x, y) ** 2).sum()
    return lib.grad(z, [x, y], create_graph=True, allow_unused=True), seen


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
