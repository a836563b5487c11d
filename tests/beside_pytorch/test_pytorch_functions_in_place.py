"""Programs about Functions that work in place or return views, on both libraries."""

import pytest
from libraries import Programs, same

pytest.importorskip("torch")
program = Programs()


def add_one(lib):
    """A Function in place whose derivative is five."""

    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    return lib.make(forward, lambda ctx, g: g * 5)


# -- mark_dirty -----------------------------------------------------------------------------------


@program
def in_place(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * 1
    z = add_one(lib).apply(y)
    z.sum().backward()
    return z is y, y, y.grad_fn.name(), x.grad


@program
def in_place_with_setup_context(lib):
    f = lib.make(
        lambda x: x.add_(1),
        lambda ctx, g: g * 5,
        lambda ctx, inputs, output: ctx.mark_dirty(*inputs),
    )
    x = lib.tensor([1.0], True)
    y = x * 1
    z = f.apply(y)
    z.sum().backward()
    return z is y, z, x.grad


@program
def in_place_chain(lib):
    x = lib.tensor([1.0], True)
    y = x * 1
    for _ in range(3):
        add_one(lib).apply(y)
    y.sum().backward()
    return y, x.grad


@program
def in_place_version(lib):
    y = lib.tensor([1.0])
    lib.make(lambda ctx, x: ctx.mark_dirty(x) or x, same).apply(y)
    once = y._version
    lib.make(lambda ctx, x: ctx.mark_dirty(x) or x, same).apply(y)
    return once, y._version


@program
def in_place_on_a_view(lib):
    x = lib.tensor([1.0, 2.0], True)
    base = x * 1
    view = base[:1]
    z = add_one(lib).apply(view)
    base.sum().backward()
    return z is view, view._base is base, base, view, x.grad


@program
def in_place_on_the_base_of_a_view(lib):
    x = lib.tensor([1.0, 2.0], True)
    base = x * 1
    view = base[:1]
    add_one(lib).apply(base)
    view.sum().backward()
    return base, view, x.grad


@program
def in_place_on_what_requires_nothing(lib):
    x = lib.tensor([1.0])
    y = add_one(lib).apply(x)
    return y is x, x


@program
def in_place_on_what_another_input_makes_active(lib):
    def forward(ctx, x, y):
        x.add_(y)
        ctx.mark_dirty(x)
        return x

    x, y = lib.tensor([1.0]), lib.tensor([2.0], True)
    z = lib.make(forward, lambda ctx, g: (g * 3, g * 4)).apply(x, y)
    x.sum().backward()
    return z is x, x, x.is_leaf, y.grad


@program
def in_place_on_a_leaf_under_no_grad(lib):
    x = lib.tensor([1.0], True)
    with lib.no_grad():
        add_one(lib).apply(x)
    return x, x.is_leaf


@program
def in_place_on_one_of_two(lib):
    def forward(ctx, x, y):
        x.add_(1)
        ctx.mark_dirty(x)
        return y * 2, x

    x, y = lib.tensor([1.0], True), lib.tensor([2.0], True)
    start = x * 1
    a, b = lib.make(forward, lambda ctx, g, h: (h * 3, g * 4)).apply(start, y)
    (a + b * 10).sum().backward()
    return a, b, b is start, x.grad, y.grad


@program
def in_place_with_hooks(lib):
    x = lib.tensor([1.0], True)
    y = x * 1
    y.register_hook(lambda g: g * 10)
    add_one(lib).apply(y)
    y.register_hook(lambda g: g * 100)
    y.retain_grad()
    y.sum().backward()
    return x.grad, y.grad


@program
def in_place_and_saved_afterwards(lib):
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    x = lib.tensor([1.0, 2.0], True)
    y = lib.make(forward, lambda ctx, g: g * ctx.saved_tensors[0]).apply(x * 1)
    y.sum().backward()
    return y, x.grad


@program
def modified_without_being_marked(lib):
    x = lib.tensor([1.0], True)
    y = x * 1
    z = lib.make(lambda ctx, x: x.add_(1), lambda ctx, g: g * 3).apply(y)
    version = y._version
    z.sum().backward()
    return z is y, version, z, x.grad


@program(raises="a leaf Variable that requires grad has been used in an in-place operation.")
def in_place_on_a_leaf(lib):
    add_one(lib).apply(lib.tensor([1.0], True))


@program(
    raises="a view of a leaf Variable that requires grad is being used in an in-place operation."
)
def in_place_on_a_view_of_a_leaf(lib):
    add_one(lib).apply(lib.tensor([1.0, 2.0], True)[:1])


@program(
    raises="Some elements marked as dirty during the forward method were not returned as output. "
    "The inputs that are modified inplace must all be outputs of the Function."
)
def dirty_but_not_returned(lib):
    f = lib.make(lambda ctx, x: ctx.mark_dirty(x) or x * 2, same)
    f.apply(lib.tensor([1.0], True) * 1)


@program(raises="were not returned as output")
def dirty_but_returned_as_a_view(lib):
    f = lib.make(lambda ctx, x: ctx.mark_dirty(x) or x[:1], same)
    f.apply(lib.tensor([1.0, 2.0], True) * 1)


@program(raises="which is output 0 of F, is at version 2; expected version 0 instead")
def in_place_on_what_is_needed(lib):
    y = lib.tensor([1.0], True) * 1
    z = y * y
    add_one(lib).apply(y)
    z.backward()


@program(raises="This view is the output of a function that returns multiple views.")
def in_place_on_one_of_several_views(lib):
    a, _ = lib.split(lib.tensor([1.0, 2.0], True) * 1, 2)
    add_one(lib).apply(a)


@program(warns="received a tensor that was not an input.")
def dirty_but_no_input(lib):
    def forward(ctx, x):
        y = x * 2
        ctx.mark_dirty(y)
        return y

    return lib.make(forward, same).apply(lib.tensor([1.0], True) * 1)


# -- views ----------------------------------------------------------------------------------------


@program
def input_returned(lib):
    x = lib.tensor([1.0], True)
    y = lib.make(lambda ctx, x: x, lambda ctx, g: g * 5).apply(x)
    y.backward()
    return y is x, y.is_leaf, x.is_leaf, y, y._is_view(), y._base is x, x.grad


@program
def input_returned_twice(lib):
    x = lib.tensor([1.0], True)
    a, b = lib.make(lambda ctx, x: (x, x), lambda ctx, a, b: a + b).apply(x)
    (a * 10 + b).backward()
    return a is b, a.output_nr, b.output_nr, x.grad


@program
def passive_input_returned(lib):
    x, y = lib.tensor([1.0], True), lib.tensor([2.0])
    out = lib.make(lambda ctx, x, y: y, lambda ctx, g: (g, g)).apply(x, y)
    return out is y, out, y


@program
def input_returned_without_recording(lib):
    f = lib.make(lambda ctx, x: x, same)
    x, n = lib.tensor([1.0]), lib.tensor([1], dtype="int64")
    return f.apply(x) is x, f.apply(n) is n, f.apply(x), f.apply(n)


@program
def view_returned(lib):
    x = lib.tensor([1.0, 2.0], True)
    start = x * 1
    f = lib.make(lambda ctx, x: x[:1], lambda ctx, g: lib.concatenate([g * 7, g * 0]))
    y = f.apply(start)
    y.sum().backward()
    return y, y._is_view(), y._base is start, x.grad


@program
def detached_input_returned(lib):
    start = lib.tensor([1.0, 2.0], True) * 1
    y = lib.make(lambda ctx, x: x.detach(), same).apply(start)
    y += 1
    return y, start.detach(), y._is_view()


@program
def in_place_on_views_that_require_nothing(lib):
    x = lib.tensor([1.0, 2.0])
    y = lib.make(lambda ctx, x: x[:1], same).apply(x)
    y += 1
    return x, y


@program(raises="This view was created inside a custom Function (or because an input was returned")
def in_place_on_an_input_returned(lib):
    y = lib.make(lambda ctx, x: x, same).apply(lib.tensor([1.0], True) * 1)
    y += 1


@program(raises="Output 0 of F is a view and is being modified inplace. This view was created")
def in_place_on_a_view_returned(lib):
    y = lib.make(lambda ctx, x: x[:1], same).apply(lib.tensor([1.0, 2.0], True) * 1)
    y += 1


@program(raises="This view was created inside a custom Function (or because an input was returned")
def in_place_on_a_view_of_something_new(lib):
    y = lib.make(lambda ctx, x: (x * 2)[:1], same).apply(lib.tensor([1.0, 2.0], True))
    y += 1


@program(raises="Output 0 of F is a view and is being modified inplace. This view is the output of")
def in_place_on_one_of_two_views_returned(lib):
    f = lib.make(lambda ctx, x: (x[:1], x[1:]), lambda ctx, a, b: lib.concatenate([a, b]))
    a, _ = f.apply(lib.tensor([1.0, 2.0], True) * 1)
    a += 1


@program(
    raises="Output 0 of F is a view and its base or another view of its base has been modified"
)
def in_place_on_the_base_of_a_view_returned(lib):
    start = lib.tensor([1.0, 2.0], True) * 1
    y = lib.make(lambda ctx, x: x[:1], same).apply(start)
    start += 1
    y.sum().backward()


@program
def in_place_on_a_copy(lib):
    x = lib.tensor([1.0], True)
    y = lib.make(lambda ctx, x: x, lambda ctx, g: g * 5).apply(x).clone()
    y += 1
    y.sum().backward()
    return y, x.grad


@program
def in_place_on_an_ordinary_output(lib):
    x = lib.tensor([1.0], True)
    y = lib.make(lambda ctx, x: x * 2, lambda ctx, g: g * 5).apply(x)
    y *= 3
    y.sum().backward()
    return y, y._is_view(), x.grad


# -- InplaceFunction ------------------------------------------------------------------------------


@program
def inplace_function(lib):
    class Twice(lib.function.InplaceFunction):
        @staticmethod
        def forward(ctx, x, inplace=False):
            if inplace:
                ctx.mark_dirty(x)
                return x.mul_(2)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2, None

    x = lib.tensor([1.0], True)
    y = x * 1
    z = Twice.apply(y, True)
    (z + Twice.apply(x)).sum().backward()
    return z is y, x.grad, Twice(True).inplace, Twice().inplace


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
