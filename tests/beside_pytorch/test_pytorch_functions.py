"""Programs about `Function` on both libraries: forward and backward, arguments, outputs."""

import pytest
from libraries import Programs, backward_of_saving, double, same, saving

pytest.importorskip("torch")
program = Programs()


# -- forward and backward -------------------------------------------------------------------------


@program
def everything_at_once(lib):
    seen = []

    def forward(ctx, x, n, y):
        ctx.save_for_backward(x, y)
        ctx.n = n
        seen.append(ctx.needs_input_grad)
        a, b = x * n, y * n
        ctx.mark_non_differentiable(b)
        return a, b, x * y

    def backward(ctx, ga, gb, gc):
        x, y = ctx.saved_tensors
        seen.append((ctx.needs_input_grad, ga.tolist(), gb.tolist(), gc.tolist()))
        return ga * ctx.n + gc * y, None, gc * x

    x, y = lib.tensor([1.0, 2.0], True), lib.tensor([3.0, 4.0])
    a, b, c = lib.make(forward, backward).apply(x, 5, y)
    c.sum().backward()
    return a, b, c, seen, x.grad, y.grad


@program
def setup_context(lib):
    seen = []

    def setup(ctx, inputs, output):
        seen.append((inputs, output, ctx.needs_input_grad, lib.is_grad_enabled()))
        ctx.save_for_backward(inputs[0])

    f = lib.make(lambda x, n: x * x * n, lambda ctx, g: (g * ctx.saved_tensors[0], None), setup)
    x = lib.tensor([1.0, 2.0], True)
    f.apply(x, 3).sum().backward()
    ((inputs, output, *rest),) = seen
    return inputs[0] is x, inputs[1], output.tolist(), rest, x.grad


@program
def setup_context_of_several(lib):
    seen = []
    f = lib.make(
        lambda x: (x * 2, "a"),
        lambda ctx, g, _: g,
        lambda ctx, inputs, output: seen.append((type(output).__name__, len(output))),
    )
    return f.apply(lib.tensor([1.0], True)), seen


@program
def vjp_instead_of_backward(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = lib.make(saving, vjp=backward_of_saving).apply(x)
    y.sum().backward()
    return y, x.grad


@program
def grad_modes(lib):
    seen = []
    f = lib.make(
        lambda ctx, x: seen.append((lib.is_grad_enabled(), (x * 2).requires_grad)) or x * 2,
        lambda ctx, g: seen.append((lib.is_grad_enabled(), g.requires_grad)) or g * 2,
    )
    x = lib.tensor([1.0], True)
    lib.grad(f.apply(x), x)
    lib.grad((f.apply(x) ** 2).sum(), x, create_graph=True)
    return seen, lib.is_grad_enabled()


@program
def not_recorded(lib):
    f = lib.make(saving, backward_of_saving)
    with lib.no_grad():
        y = f.apply(lib.tensor([1.0], True))
    z = f.apply(lib.tensor([1.0]))
    return y, z, y.grad_fn is None, z.is_leaf


@program
def under_enable_grad_inside_no_grad(lib):
    f = lib.make(double, same)
    with lib.no_grad(), lib.enable_grad():
        return f.apply(lib.tensor([1.0], True))


@program
def a_forward_that_records_on_its_own(lib):
    def forward(ctx, x):
        with lib.enable_grad():
            ctx.inner = x.detach().requires_grad_()
            ctx.result = ctx.inner.exp() * ctx.inner
        return ctx.result.detach()

    def backward(ctx, g):
        return lib.grad(ctx.result, ctx.inner, g)[0]

    x = lib.tensor([0.5, 1.0], True)
    lib.make(forward, backward).apply(x * 2).sum().backward()
    return x.grad


@program
def differentiated_three_times(lib):
    x = lib.tensor([0.5, 1.0], True)

    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y * x

    def backward(ctx, g):
        x, _ = ctx.saved_tensors
        return g * (x.exp() * x + x.exp())

    y = lib.make(forward, backward).apply(x)
    found = []
    for _ in range(3):
        (y,) = lib.grad(y.sum(), x, create_graph=True)
        found.append(y)
    return found


@program
def saved_output_differentiated_twice(lib):
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    x = lib.tensor([0.5, 1.0], True)
    y = lib.make(forward, lambda ctx, g: g * ctx.saved_tensors[0]).apply(x)
    (first,) = lib.grad(y.sum(), x, create_graph=True)
    return first, lib.grad(first.sum(), x)


@program
def used_twice_and_shared(lib):
    f = lib.make(saving, backward_of_saving)
    x = lib.tensor([1.0, 2.0], True)
    y = f.apply(x)
    (f.apply(y) * y + f.apply(x)).sum().backward()
    return x.grad


@program
def double_backward_of_several(lib):
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        ctx.set_materialize_grads(False)
        return x * y, x + y

    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        gx = gy = None
        if g is not None:
            gx, gy = g * y, g * x
        if h is not None:
            gx, gy = (h if gx is None else gx + h), (h if gy is None else gy + h)
        return gx, gy

    f = lib.make(forward, backward)
    x, y = lib.tensor([1.0, 2.0], True), lib.tensor([3.0, 4.0], True)
    a, b = f.apply(x, y)
    first = lib.grad((a * b).sum(), [x, y], create_graph=True)
    second = lib.grad((first[0] * first[1]).sum(), [x, y])
    only_b = lib.grad(f.apply(x, y)[1].sum(), [x, y])
    return first, second, only_b


# -- arguments ------------------------------------------------------------------------------------


@program
def arguments_of_any_kind(lib):
    f = lib.make(
        lambda ctx, x, items, text, mapping: x * items[0] * mapping["k"],
        lambda ctx, g: (g * 2, None, None, None),
    )
    x, y = lib.tensor([1.0], True), lib.tensor([2.0])
    z = f.apply(x, [y], "text", {"k": 3})
    z.backward()
    return z, x.grad, y.grad


@program
def keywords(lib):
    seen = []
    f = lib.make(
        lambda ctx, x, y=3: seen.append((ctx.needs_input_grad, y)) or x * y,
        lambda ctx, g: (g, None),
    )
    x = lib.tensor([1.0], True)
    for z in (f.apply(x, y=5), f.apply(x), f.apply(x, 7)):
        z.backward()
    return x.grad, [y for _, y in seen], seen[0], seen[2]


@program
def tensors_by_keyword(lib):
    f = lib.make(lambda ctx, x, y: x * y, lambda ctx, g: (g * 10, g * 100))
    x, y = lib.tensor([1.0], True), lib.tensor([2.0], True)
    f.apply(y=y, x=x).backward()
    return x.grad, y.grad


@program
def keywords_with_setup_context(lib):
    seen = []
    f = lib.make(
        lambda x, k=2, n=7: x * k * n,
        lambda ctx, g: (g, None, None),
        lambda ctx, inputs, output: seen.append((inputs[1:], ctx.needs_input_grad)),
    )
    x = lib.tensor([1.0], True)
    f.apply(x, n=3).backward()
    f.apply(x).backward()
    return seen, x.grad


@program(raises="got an unexpected keyword argument 'nope'")
def unknown_keyword(lib):
    lib.make(double, same).apply(lib.tensor([1.0], True), nope=3)


@program(raises="got an unexpected keyword argument 'k'")
def keyword_only_argument(lib):
    def forward(ctx, x, *, k=2):
        return x * k

    lib.make(forward, same).apply(lib.tensor([1.0], True), k=5)


@program(raises="missing 1 required positional argument: 'x'")
def missing_argument(lib):
    lib.make(double, same).apply()


@program
def needs_input_grad(lib):
    seen = []
    f = lib.make(
        lambda ctx, *args: seen.append(ctx.needs_input_grad) or args[0] * args[1],
        lambda ctx, g: seen.append(ctx.needs_input_grad) or (g, g, None),
    )
    for first, second in [(True, False), (False, True), (True, True), (False, False)]:
        y = f.apply(lib.tensor([1.0], first), lib.tensor([2.0], second), 3)
        seen.append(y.requires_grad)
        if y.requires_grad:
            y.backward()
    return seen


@program
def same_tensor_twice(lib):
    x = lib.tensor([2.0], True)
    lib.make(lambda ctx, x, y: x * y, lambda ctx, g: (g * 10, g * 100)).apply(x, x).backward()
    return x.grad


@program
def only_what_is_needed_runs(lib):
    calls = []
    f = lib.make(double, lambda ctx, g: calls.append(1) or g * 2)
    x = lib.tensor([1.0, 2.0], True)
    y = f.apply(x)
    return lib.grad(f.apply(y).sum(), y), calls


# -- outputs --------------------------------------------------------------------------------------


@program
def outputs_of_any_kind(lib):
    seen = []

    def backward(ctx, g, *others):
        seen.append(others)
        return g

    x = lib.tensor([1.0], True)
    y, *others = lib.make(lambda ctx, x: (x * 2, "text", None, 3), backward).apply(x)
    y.sum().backward()
    return others, seen, x.grad


@program
def nested_outputs(lib):
    seen = []

    def backward(ctx, *grads):
        seen.append(grads[1:])
        return grads[0]

    f = lib.make(lambda ctx, x: (x * 2, (x * 3, x * 4), [x * 5], {"a": x * 6}), backward)
    out = f.apply(lib.tensor([1.0], True))
    out[0].backward()
    return out, seen


@program
def list_output(lib):
    out = lib.make(lambda ctx, x: [x * 2, x * 3], same).apply(lib.tensor([1.0], True))
    return type(out), out


@program
def tuple_of_one(lib):
    x = lib.tensor([1.0], True)
    out = lib.make(lambda ctx, x: (x * 2,), lambda ctx, g: (g * 3,)).apply(x)
    out[0].backward()
    return type(out), out, x.grad


@program
def no_tensor_at_all(lib):
    x = lib.tensor([1.0], True)
    return [lib.make(lambda ctx, x, o=o: o, same).apply(x) for o in (None, 3.0, "a", (), (1, 2))]


@program
def integer_and_boolean_outputs(lib):
    seen = []

    def forward(ctx, x):
        return x * 2, lib.astype(x, "int64"), x > 1

    def backward(ctx, *grads):
        seen.append([(g.dtype, g.tolist()) for g in grads])
        return grads[0]

    y, n, flags = lib.make(forward, backward).apply(lib.tensor([1.5, 0.5], True))
    y.sum().backward()
    return y, n, flags, n.is_leaf, seen


@program
def shared_node_and_numbers(lib):
    a, b = lib.make(lambda ctx, x: (x * 2, x * 3), same).apply(lib.tensor([1.0], True))
    return a.output_nr, b.output_nr, a.grad_fn is b.grad_fn


@program
def outputs_partially_used(lib):
    seen = []

    def backward(ctx, a, b):
        seen.append((a, b))
        return a * 2 + b * 3

    x = lib.tensor([1.0, 2.0], True)
    a, b = lib.make(lambda ctx, x: (x * 2, x * 3), backward).apply(x)
    a.sum().backward(retain_graph=True)
    b.sum().backward(retain_graph=True)
    (a + b * 10).sum().backward()
    return seen, x.grad


@program
def same_output_twice(lib):
    def forward(ctx, x):
        y = x * 2
        return y, y

    x = lib.tensor([1.0], True)
    a, b = lib.make(forward, lambda ctx, a, b: a + b).apply(x)
    (a * 10 + b).backward()
    return a, b, x.grad


@program
def without_materializing(lib):
    seen = []

    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 1, x * 2, lib.astype(x, "int64"), 5

    def backward(ctx, *grads):
        seen.append([g is None for g in grads])
        return grads[1] * 2

    x = lib.tensor([1.0], True)
    lib.make(forward, backward).apply(x)[1].sum().backward()
    return seen, x.grad


@program
def non_differentiable_outputs(lib):
    seen = []

    def forward(ctx, x):
        y, z = x * 2, x * 3
        ctx.mark_non_differentiable(y, z)
        return y, x * 4, z

    def backward(ctx, *grads):
        seen.append(grads)
        return grads[1]

    x = lib.tensor([1.0], True)
    y, active, z = lib.make(forward, backward).apply(x)
    (active * y).sum().backward()
    return y, active, z, y.is_leaf, y.grad_fn is None, seen, x.grad


@program
def non_differentiable_the_last_call_counts(lib):
    def forward(ctx, x):
        y, z = x * 2, x * 3
        ctx.mark_non_differentiable(y)
        ctx.mark_non_differentiable(z)
        return y, z

    return lib.make(forward, same).apply(lib.tensor([1.0], True))


@program
def non_differentiable_without_materializing(lib):
    seen = []

    def forward(ctx, x):
        y = x * 3
        ctx.mark_non_differentiable(y)
        ctx.set_materialize_grads(False)
        return x * 2, y

    f = lib.make(forward, lambda ctx, a, b: seen.append(b) or a)
    f.apply(lib.tensor([1.0], True))[0].backward()
    return seen


@program
def non_differentiable_input(lib):
    def forward(ctx, x):
        ctx.mark_non_differentiable(x)
        return x

    x = lib.tensor([1.0], True)
    y = lib.make(forward, same).apply(x)
    return y is x, x, y


# -- errors inside, composition -------------------------------------------------------------------


@program
def errors_leave_the_mode_alone(lib):
    def fail(*args):
        raise KeyError("mine")

    x = lib.tensor([1.0], True)
    found = [lib.attempt(lambda: lib.make(fail, same).apply(x)), lib.is_grad_enabled()]
    y = lib.make(double, fail).apply(x)
    found += [lib.attempt(y.backward), lib.is_grad_enabled(), x.grad]
    setup = lib.make(lambda x: x * 2, same, fail)
    return [*found, lib.attempt(lambda: setup.apply(x)), lib.is_grad_enabled()]


@program
def backward_inside_backward(lib):
    w = lib.tensor([3.0], True)

    def backward(ctx, g):
        with lib.enable_grad():
            (w * w).sum().backward()
        return g * 2

    x = lib.tensor([1.0], True)
    lib.make(double, backward).apply(x).backward()
    return x.grad, w.grad


@program
def functions_inside_functions(lib):
    square = lib.make(saving, backward_of_saving)
    outer = lib.make(
        lambda ctx, x: ctx.save_for_backward(x) or square.apply(x) * 3,
        lambda ctx, g: g * 6 * square.apply(ctx.saved_tensors[0]),
    )
    x = lib.tensor([2.0], True)
    y = outer.apply(x)
    (first,) = lib.grad(y, x, create_graph=True)
    return y, first, lib.grad(first, x)


@program
def batched_cotangents(lib):
    x = lib.tensor([1.0, 2.0, 3.0], True)
    y = lib.make(saving, backward_of_saving).apply(x)
    return lib.grad(y, x, lib.eye(3), is_grads_batched=True)


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
