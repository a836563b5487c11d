"""Hooks of saved tensors do the same on both libraries."""

import pytest
from libraries import Programs

pytest.importorskip("torch")
program = Programs()


# -- saved tensors --------------------------------------------------------------------------------


def packed(lib, op):
    """What an op packs: values, whether they require grad, whether they are leaves."""
    seen = []

    def pack(t):
        seen.append((t.detach().tolist(), t.requires_grad, t.is_leaf))
        return t.detach()

    x, w = lib.tensor([1.0, 2.0], True), lib.tensor([3.0, 4.0], True)
    with lib.graph.saved_tensors_hooks(pack, lambda t: t):
        y = op(x, w, lib.tensor([5.0, 6.0]))
    found = sorted(seen)
    y.sum().backward()
    return found, x.grad, w.grad


PACKED = {
    "a_product": lambda x, w, c: x * w,
    "a_square": lambda x, w, c: x * x,
    "a_product_with_a_constant": lambda x, w, c: x * c,
    "a_product_of_a_constant": lambda x, w, c: c * x,
    "a_product_with_a_number": lambda x, w, c: x * 2.0,
    "a_quotient_by_a_constant": lambda x, w, c: x / c,
    "a_sum": lambda x, w, c: x + w,
    "a_logarithm": lambda x, w, c: x.log(),
    "a_sine": lambda x, w, c: x.sin(),
    "an_inner_product": lambda x, w, c: x @ w,
    "a_sum_of_squares": lambda x, w, c: (x**2).sum(),
    "a_chain": lambda x, w, c: (x.sin() * w).sin(),
    "an_item": lambda x, w, c: x[0],
}
for name, op in PACKED.items():

    def saved(lib, op=op):
        return packed(lib, op)

    saved.__name__ = f"saved_by_{name}"
    program(saved)


@program
def innermost_hooks_and_several_backwards(lib):
    seen = []

    def hooks(name):
        def pack(t):
            seen.append(name + " packs")
            return t.detach()

        def unpack(t):
            seen.append(name + " unpacks")
            return t

        return lib.graph.saved_tensors_hooks(pack, unpack)

    x = lib.tensor([1.0, 2.0], True)
    with hooks("outer"):
        y = x.sin()
        with hooks("inner"):
            y = y.sin()
        y = y.sin().sum()
    y.backward(retain_graph=True)
    seen.append("again")
    y.backward()
    return seen, x.grad


@program
def hooks_of_what_a_function_saves(lib):
    seen = []

    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x, None, y)
        return y

    def backward(ctx, g):
        x, nothing, y = ctx.saved_tensors
        seen.append((x.tolist(), nothing, y.tolist(), y.requires_grad))
        return g * y

    def pack(t):
        seen.append(("pack", t.detach().tolist()))
        return lib.array(t)

    def unpack(a):
        seen.append(("unpack", a.tolist()))
        return lib.tensor(a.tolist())

    x = lib.tensor([0.0, 0.0], True)
    with lib.graph.saved_tensors_hooks(pack, unpack):
        y = lib.make(forward, backward).apply(x)
    y.sum().backward()
    return seen, x.grad


@program
def double_backward_through_hooks(lib):
    x = lib.tensor([1.0, 2.0], True)
    pack, unpack = lib.array, lambda a: lib.tensor(a.tolist())
    with lib.graph.saved_tensors_hooks(pack, unpack):
        y = (x * x * x.exp()).sum()
        (g,) = lib.grad(y, x, create_graph=True)
    return g, lib.grad(g.sum(), x)


@program
def packed_values_are_not_checked(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * 1
    with lib.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        z = y.sin()
    with lib.graph.save_on_cpu():
        w = x.sin()
    y.mul_(2)
    (z + w).sum().backward()
    return x.grad


@program(raises=True)
def unpack_that_returns_a_number(lib):
    with lib.graph.saved_tensors_hooks(lambda t: 5, lambda n: n):
        y = lib.tensor([1.0], True).exp()
    y.backward()


@program(raises=True)
def pack_that_writes(lib):
    with lib.graph.saved_tensors_hooks(lambda t: t.mul_(2), lambda t: t):
        (lib.tensor([1.0], True) * 1).sin()


@program(raises="mine")
def hooks_that_are_disabled(lib):
    with lib.graph.disable_saved_tensors_hooks("mine"), lib.graph.save_on_cpu():
        pass


@program(raises="mine")
def hooks_disabled_while_in_use(lib):
    with (
        lib.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        lib.graph.disable_saved_tensors_hooks("mine"),
    ):
        pass


@program
def disabling_nests(lib):
    def message():
        return str(lib.attempt(lib.graph.save_on_cpu().__enter__).error)

    with lib.graph.disable_saved_tensors_hooks("outer"):
        with lib.graph.disable_saved_tensors_hooks("inner"):
            seen = [message()]
        seen.append(message())
    with lib.graph.save_on_cpu():
        return seen


# -- mutation of saved tensors --------------------------------------------------------------------


@program
def mutation_allowed(lib):
    x = lib.tensor([1.0, 2.0, 3.0], True)
    with lib.graph.allow_mutation_on_saved_tensors():
        y = x * 1
        view = y[:2]
        z = y.sin().sum() + view.exp().sum()
        view.mul_(3)
        w = y.exp()
        z = z + w.sum()
        w[0] = 5.0
        y.zero_()
        z.backward(retain_graph=True)
        z.backward()
    return x.grad, y, view, w


@program
def mutation_allowed_in_functions(lib):
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y + x

    x = lib.tensor([1.0, 2.0], True)
    with lib.graph.allow_mutation_on_saved_tensors():
        a = x * 1
        y = lib.make(forward, backward).apply(a)
        z = y.sum()
        a.zero_()
        y.zero_()
        z.backward()
    return x.grad, a, y


@program(raises="allow_mutation_on_saved_tensors contexts cannot be nested")
def mutation_allowed_twice(lib):
    allow = lib.graph.allow_mutation_on_saved_tensors
    with allow(), allow():
        pass


@program(raises="Trying to backward outside of the 'allow_mutation_on_saved_tensors' context")
def mutation_allowed_and_backward_outside(lib):
    with lib.graph.allow_mutation_on_saved_tensors():
        y = lib.tensor([1.0], True).exp()
    y.backward()


@program(raises="is at version 1; expected version 0 instead.")
def mutation_allowed_too_late(lib):
    y = lib.tensor([1.0], True).exp()
    z = y.sum()
    with lib.graph.allow_mutation_on_saved_tensors():
        y.zero_()
        z.backward()


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
