"""Programs about `backward`, `grad` and the engine, on both libraries."""

import threading

import pytest
from libraries import Programs

pytest.importorskip("torch")
program = Programs()


# -- gradients ------------------------------------------------------------------------------------


@program
def elementwise_chain(lib):
    x = lib.tensor([0.3, 1.2], True)
    y = (x.sin() * x.exp() + x**3 / (1 + x * x)).sum()
    y.backward()
    return y, x.grad


@program
def accumulation(lib):
    x = lib.tensor([1.0, 2.0], True)
    kept = []
    for k in range(3):
        (x * k).sum().backward()
        kept.append(x.grad)
    return kept[0], kept[0] is kept[2], kept[0]._version


@program
def accumulation_into_a_view(lib):
    store = lib.zeros(4)
    x, w = lib.tensor([1.0, 2.0], True), lib.tensor([3.0, 4.0], True)
    x.grad, w.grad = store[:2], store[2:]
    (x * w).sum().backward()
    return store


@program
def accumulation_onto_a_history(lib):
    x, w = lib.tensor([1.0, 2.0], True), lib.tensor([3.0, 4.0], True)
    x.grad = w * 2
    (x * 2).sum().backward()
    return x.grad, w, x.grad.requires_grad


@program(warns="create_graph=True will create a reference cycle between the parameter and its")
def accumulation_with_create_graph(lib):
    x = lib.tensor([1.0, 2.0], True)
    (x * 3).sum().backward()
    kept = x.grad
    (x**3).sum().backward(create_graph=True)
    return kept is x.grad, kept, x.grad, lib.grad(x.grad.sum(), x)


@program
def roots_and_cotangents(lib):
    x = lib.tensor([1.0, 2.0], True)
    a, b = x * 2, x.exp()
    lib.backward([a, b, a], [lib.tensor([1.0, 2.0]), lib.tensor([3.0, 4.0]), lib.ones(2)])
    return x.grad


@program
def roots_of_one_chain(lib):
    x = lib.tensor(2.0, True)
    a = x * x
    b = a * 3
    lib.backward([x, b, a])
    return x.grad


@program
def leaf_as_root(lib):
    x = lib.tensor([1.0, 2.0], True)
    seed = lib.tensor([5.0, 6.0])
    x.backward(seed)
    x.grad.zero_()
    return seed, x.grad


@program
def unused_inputs(lib):
    x, y = lib.tensor([1.0], True), lib.tensor([1.0, 2.0], True)
    z = (x * 2).sum()
    return (
        lib.grad(z, [x, y], allow_unused=True, retain_graph=True),
        lib.grad(z, [x, y], materialize_grads=True),
    )


@program
def intermediate_inputs(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * x
    z = (y.exp() * x).sum()
    return lib.grad(z, [y, x, z], retain_graph=True), lib.grad(z, x)


@program
def backward_inputs(lib):
    x, w = lib.tensor([1.0, 2.0], True), lib.tensor([3.0, 4.0], True)
    y = x * w
    y.retain_grad()
    (y * 2).sum().backward(inputs=[w, y])
    return x.grad, w.grad, y.grad


@program
def backward_inputs_and_hooks(lib):
    x = lib.tensor(2.0, True)
    y = x * x
    y.register_hook(lambda g: g * 10)
    y.retain_grad()
    (y * 5).backward(inputs=[y])
    return y.grad, x.grad


@program
def edges_as_inputs(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * x
    edge = lib.graph.get_gradient_edge(y)
    z = (y * 3).sum()
    first = lib.grad(z, [edge, x], retain_graph=True)
    z.backward(inputs=[lib.graph.get_gradient_edge(x)])
    return first, x.grad, edge.output_nr


@program
def higher_orders(lib):
    x = lib.tensor([0.5, 1.5], True)
    y = (x.sin() * x**3).sum()
    found = []
    for _ in range(3):
        (g,) = lib.grad(y, x, create_graph=True)
        found.append(g)
        y = g.sum()
    return found


@program
def by_the_cotangent(lib):
    x, v = lib.tensor([1.0, 2.0], True), lib.tensor([3.0, 4.0], True)
    (g,) = lib.grad(x**2, x, v, create_graph=True)
    return g, lib.grad(g.sum(), [v, x])


@program
def batched(lib):
    x = lib.tensor([1.0, 2.0, 3.0], True)
    return lib.grad(x**2, x, lib.eye(3), is_grads_batched=True)


@program
def batched_scalars(lib):
    x, w = lib.tensor(2.0, True), lib.tensor(3.0, True)
    seeds = lib.tensor([1.0, 2.0, 3.0])
    return lib.grad(x * x * w, [x, w], seeds, is_grads_batched=True)


@program
def mixed_dtypes(lib):
    x = lib.tensor([1.0, 2.0], True, dtype="float32")
    y = lib.tensor([3.0, 4.0], True)
    (x * y).sum().backward()
    return x.grad, y.grad


@program
def cotangents_are_converted(lib):
    x = lib.tensor([1.0, 2.0], True)
    (x * x).backward(lib.tensor([1, 2], dtype="int64"))
    (x * x).backward(lib.tensor([1.0, 2.0], dtype="float32"))
    return x.grad


@program
def cotangent_that_requires_grad(lib):
    x, v = lib.tensor([1.0, 2.0], True), lib.tensor([3.0, 4.0], True)
    (x * x).backward(v)
    return x.grad, v.grad


@program(raises=True)
def cotangent_for_a_part(lib):
    x = lib.tensor([1.0, 2.0], True)
    lib.backward([x * 2, x * 3], [lib.ones(2), None])


# -- the second time ------------------------------------------------------------------------------


@program
def second_backward_with_nothing_saved(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = (x + 1).sum()
    y.backward()
    y.backward()
    z = x.mean()
    z.backward()
    z.backward()
    return x.grad


@program
def retained_and_then_freed(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad, lib.attempt(y.backward), x.grad


@program
def shared_part_freed(lib):
    x = lib.tensor([1.0, 2.0], True)
    shared = x.exp()
    a, b = (shared * 2).sum(), (shared + 3).sum()
    a.backward()
    return x.grad, lib.attempt(b.backward)


@program
def create_graph_retains(lib):
    x = lib.tensor(2.0, True)
    y = x**3
    lib.grad(y, x, create_graph=True)
    again = lib.grad(y, x, create_graph=True, retain_graph=False)
    return again, lib.attempt(lambda: lib.grad(y, x))


@program
def off_the_way_is_not_freed(lib):
    x, w = lib.tensor(2.0, True), lib.tensor(3.0, True)
    a, b = x * x, w * w
    z = a + b
    return lib.grad(z, x), lib.grad(b, w)


# -- texts ----------------------------------------------------------------------------------------


@program(raises=True)
def second_time(lib):
    y = (lib.tensor([1.0], True) ** 2).sum()
    y.backward()
    y.backward()


@program(raises=True)
def no_cotangent(lib):
    (lib.tensor([1.0, 2.0], True) * 2).backward()


@program(raises="Mismatch in shape: grad_output[0] has a shape of [3] and output[0] has a shape")
def cotangent_shape(lib):
    (lib.tensor([1.0, 2.0], True) * 2).backward(lib.ones(3))


@program(raises=True)
def second_root_has_no_graph(lib):
    x = lib.tensor(1.0, True)
    lib.backward([x * 2, lib.tensor(1.0)])


@program(raises="got 2 tensors and 1 gradients")
def cotangent_count(lib):
    x = lib.tensor(1.0, True)
    lib.backward([x * 2, x * 3], [lib.tensor(1.0)])


@program(raises=True)
def passive_input(lib):
    x = lib.tensor(1.0, True)
    lib.grad(x * 2, [lib.tensor(1.0)])


@program(raises="Set allow_unused=True if this is the desired behavior.")
def unused_input(lib):
    x = lib.tensor(1.0, True)
    lib.grad(x * 2, [x, lib.tensor(1.0, True)])


@program(raises=True)
def contradicting_arguments(lib):
    x = lib.tensor(1.0, True)
    lib.grad(x * 2, x, allow_unused=False, materialize_grads=True)


@program(raises=True)
def empty_inputs(lib):
    (lib.tensor(1.0, True) * 2).backward(inputs=[])


@program(raises=True)
def empty_inputs_of_grad(lib):
    lib.grad(lib.tensor(1.0, True) * 2, [])


@program(warns=True, raises=True)
def two_names(lib):
    x = lib.tensor(1.0, True)
    lib.backward(x * 2, lib.tensor(1.0), grad_variables=lib.tensor(1.0))


@program(warns=True)
def deprecated_name(lib):
    x = lib.tensor(1.0, True)
    lib.backward(x * 2, grad_variables=lib.tensor(3.0))
    return x.grad


@program(warns=True)
def deprecated_only_inputs(lib):
    x = lib.tensor(1.0, True)
    return lib.grad(x * 2, x, only_inputs=False), x.grad


@program(raises=True)
def edge_of_a_passive_tensor(lib):
    lib.graph.get_gradient_edge(lib.tensor(1.0))


@program(warns="not a leaf Tensor is being accessed")
def grad_of_a_nonleaf(lib):
    return (lib.tensor(1.0, True) * 2).grad


# -- backward inside backward ---------------------------------------------------------------------


@program
def reentrant_in_a_hook(lib):
    x, w = lib.tensor(2.0, True), lib.tensor(3.0, True)

    def hook(g):
        with lib.enable_grad():
            (w * w).backward()

    y = x * x
    y.register_hook(hook)
    (y * 5).backward()
    return x.grad, w.grad


@program
def reentrant_into_the_same_leaf(lib):
    x = lib.tensor(2.0, True)

    def hook(g):
        with lib.enable_grad():
            (x * 7).backward()

    y = x * x
    y.register_hook(hook)
    (y * 5).backward()
    return x.grad


@program
def reentrant_in_the_same_graph(lib):
    x = lib.tensor(2.0, True)
    y = x * x
    z = y * y
    depth = []

    def hook(g):
        if len(depth) < 3:
            depth.append(1)
            z.backward(retain_graph=True)

    y.register_hook(hook)
    z.backward(retain_graph=True)
    return x.grad, len(depth)


@program(raises=True)
def reentrant_frees_the_outer_graph(lib):
    z = lib.tensor(0.5, True).exp().exp()
    once = []

    def hook(g):
        if not once:
            once.append(1)
            z.backward()

    z.register_hook(hook)
    z.backward()


@program
def reentrant_functions(lib):
    def forward(ctx, x, depth):
        ctx.save_for_backward(x)
        ctx.depth = depth
        return x * x

    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with lib.enable_grad():
            y = f.apply(x, ctx.depth - 1) if ctx.depth else x * x
            y.backward(g)
        return x.grad, None

    f = lib.make(forward, backward)
    x = lib.tensor([2.0, 3.0], True)
    f.apply(x, 10).sum().backward()
    return x.grad


@program
def grad_in_a_hook(lib):
    x, w = lib.tensor(2.0, True), lib.tensor(3.0, True)
    inner = w**3
    y = x * 2
    y.register_hook(lambda g: g * lib.grad(inner, w, retain_graph=True)[0])
    y.backward()
    return x.grad, w.grad


# -- hooks, errors, threads -----------------------------------------------------------------------


@program
def hooks_in_order(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * x
    z = y * 3
    seen = []
    x.register_hook(lambda g: seen.append(("x", g.tolist())))
    z.register_hook(lambda g: seen.append(("z", g.tolist())))
    first = y.register_hook(lambda g: seen.append(("y1", g.tolist())))
    y.register_hook(lambda g: (seen.append(("y2", g.tolist())), g * 2)[1])
    y.register_hook(lambda g: seen.append(("y3", g.tolist())))
    first.remove()
    y.retain_grad()
    z.sum().backward()
    return seen, x.grad, y.grad


@program
def hooks_of_several_roots(lib):
    x = lib.tensor(2.0, True)
    y = x * 3
    seen = []
    y.register_hook(lambda g: seen.append(g.item()))
    lib.backward([y, y * 10, y])
    return seen, x.grad


@program
def hook_modes(lib):
    x = lib.tensor([1.0], True)
    y = x * x
    seen = []
    y.register_hook(lambda g: seen.append(lib.is_grad_enabled()))
    x.register_hook(lambda g: seen.append(lib.is_grad_enabled()))
    y.sum().backward(retain_graph=True)
    lib.grad(y.sum(), x, create_graph=True)
    return seen


@program
def hook_on_a_requested_input(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * x
    y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g + 1)
    z = (y * 3).sum()
    return lib.grad(z, y, retain_graph=True), lib.grad(z, x)


@program
def error_in_a_hook(lib):
    x = lib.tensor(2.0, True)
    y = x.exp()

    def hook(g):
        raise KeyError("mine")

    handle = y.register_hook(hook)
    z = y * y
    error = lib.attempt(lambda: z.backward(retain_graph=True))
    handle.remove()
    before = x.grad
    z.backward()
    return type(error.error) is KeyError, before, x.grad, lib.is_grad_enabled()


@program
def error_in_a_function(lib):
    def backward(ctx, g):
        raise ValueError("mine")

    x = lib.tensor([2.0], True)
    y = lib.make(lambda ctx, x: x * 2, backward).apply(x)
    error = lib.attempt(y.backward)
    (x * 3).backward()
    return error, x.grad, lib.is_grad_enabled()


@program
def recorded_here_and_swept_there(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = (x.exp() * x).sum()
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()
    return x.grad


@program
def recorded_there_and_swept_here(lib):
    x = lib.tensor([1.0, 2.0], True)
    made = []
    with lib.no_grad():
        thread = threading.Thread(target=lambda: made.append((x.exp() * x).sum()))
        thread.start()
        thread.join()
    made[0].backward()
    return x.grad


@program
def long_chain(lib):
    x = y = lib.tensor(1.0, True)
    for _ in range(20_000):
        y = y * 1.0001
    y.backward()
    return y, x.grad


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
    assert name in program
