"""Hooks of nodes and of tensors do the same on both libraries."""

import pytest
from libraries import Programs, lists, pair

pytest.importorskip("torch")
program = Programs()


def nothing(lib):
    """The identity without a gradient."""
    return lib.make(lambda ctx, x: x * 1, lambda ctx, g: None, name="Nothing")


# -- hooks of nodes -------------------------------------------------------------------------------


@program
def node_hooks_with_two_inputs(lib):
    x, w = lib.tensor([1.0, 2.0], True), lib.tensor([3.0, 4.0], True)
    y = x * w
    seen = []
    y.grad_fn.register_hook(lambda gi, go: seen.append((lists(gi), lists(go))))
    y.grad_fn.register_prehook(lambda go: seen.append(lists(go)))
    z = (y * 5).sum()
    lib.grad(z, w, retain_graph=True)
    z.backward()
    return seen, x.grad


@program
def node_hooks_that_replace(lib):
    x, w = lib.tensor([1.0, 2.0], True), lib.tensor([3.0, 4.0], True)
    y = x * w
    y.grad_fn.register_prehook(lambda go: (go[0] * 10,))
    y.grad_fn.register_prehook(lambda go: (go[0] + 1,))
    y.grad_fn.register_hook(lambda gi, go: (gi[1], gi[0]))
    y.grad_fn.register_hook(lambda gi, go: (gi[0], None))
    y.sum().backward()
    return x.grad, w.grad


@program
def node_hooks_of_a_function(lib):
    x = lib.tensor([1.0, 2.0], True)
    a, _ = pair(lib).apply(x, 3, lib.ones(2))
    seen = []
    a.grad_fn.register_prehook(lambda go: seen.append(lists(go)))
    a.grad_fn.register_hook(lambda gi, go: seen.append((len(gi), lists(go))))
    a.sum().backward()
    return seen, x.grad


@program
def node_hooks_of_a_leaf(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * 3
    node = y.grad_fn.next_functions[0][0]
    seen = []
    node.register_prehook(lambda go: (seen.append((lists(go), x.grad)), (go[0] * 2,))[1])
    node.register_hook(lambda gi, go: seen.append((lists(gi), lists(go), x.grad.tolist())))
    y.sum().backward()
    lib.grad((x * 7).sum(), x)
    return seen, x.grad


@program
def node_hooks_in_double_backward(lib):
    x, w = lib.tensor([1.0, 2.0], True), lib.tensor(5.0, True)
    y = x * x
    y.grad_fn.register_hook(lambda gi, go: (gi[0] * w, gi[1]))
    (g,) = lib.grad(y.sum(), x, create_graph=True)
    return g, lib.grad(g.sum(), [x, w])


@program
def node_handles(lib):
    y = lib.tensor([1.0, 2.0], True).exp()
    seen = []
    handle = y.grad_fn.register_hook(lambda gi, go: seen.append(1))
    with y.grad_fn.register_prehook(lambda go: seen.append(2)):
        y.sum().backward(retain_graph=True)
    handle.remove()
    handle.remove()
    y.sum().backward()
    return seen


def wrong_hooks():
    """Programs with a hook of a node that returns what does not fit."""
    results = {
        "a_tensor": lambda g: g[0],
        "a_number": lambda g: 3,
        "a_list": lambda g: [g[0]],
        "a_tuple_of_numbers": lambda g: (3.0,),
        "too_many": lambda g: (g[0], g[0]),
        "too_few": lambda g: (),
        "another_size": lambda g: (g[0][:1],),
        "another_dtype": None,
    }
    for name, result in results.items():
        for kind in ("hook", "prehook"):

            def function(lib, kind=kind, result=result):
                cast = lambda g: (lib.astype(g[0], "float32"),)  # noqa: E731
                y = lib.tensor([1.0, 2.0], True).exp()
                returned = result or cast
                if kind == "hook":
                    y.grad_fn.register_hook(lambda gi, go: returned(gi))
                else:
                    y.grad_fn.register_prehook(returned)
                y.sum().backward()

            function.__name__ = f"{kind}_that_returns_{name}"
            program(raises=True if "dtype" not in name else "has changed the type of")(function)


wrong_hooks()


@program(raises="can't replace a None gradient with a non-None value")
def hook_that_makes_a_gradient(lib):
    y = lib.tensor([1.0, 2.0], True) * lib.ones(2)
    y.grad_fn.register_hook(lambda gi, go: (gi[0], gi[0]))
    y.sum().backward()


@program
def prehook_that_drops_the_gradient(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x.exp()
    y.grad_fn.register_prehook(lambda go: (None,))
    y.sum().backward()
    return x.grad


# -- tensor hooks ---------------------------------------------------------------------------------


@program
def the_order_of_all_hooks(lib):
    order = []

    def note(name):
        return lambda *args: order.append(name)

    x, w = lib.tensor([1.0, 2.0], True), lib.tensor([3.0, 4.0])
    y = (x * w).exp()
    z = y.sum()
    leaf = y.grad_fn.next_functions[0][0].next_functions[0][0]
    for name, t, node in (("z", z, z.grad_fn), ("x", x, leaf), ("y", y, y.grad_fn)):
        node.register_hook(note(name + " node"))
        node.register_prehook(note(name + " pre"))
        t.register_hook(note(name + " tensor"))
        node.register_hook(note(name + " node again"))
        node.register_prehook(note(name + " pre again"))
        t.register_hook(note(name + " tensor again"))
    x.register_post_accumulate_grad_hook(note("accumulated"))
    for action in (
        lambda: z.backward(retain_graph=True),
        lambda: z.backward(inputs=[x], retain_graph=True),
        lambda: lib.grad(z, x, retain_graph=True),
        lambda: lib.grad(z, y, retain_graph=True),
        lambda: lib.grad(z, [x, y], retain_graph=True),
        lambda: lib.grad(z, z, retain_graph=True),
    ):
        order.append("next")
        action()
    return order


@program
def values_between_hooks(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * 3
    y.retain_grad()
    y.grad_fn.register_prehook(lambda go: (go[0] * 5,))
    y.register_hook(lambda g: g * 2)
    found = lib.grad(y.sum(), x, retain_graph=True)
    return found, lib.grad(y.sum(), y), y.grad


@program
def hooks_of_inputs_of_backward(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * x
    y.register_hook(lambda g: g * 2)
    y.retain_grad()
    y.sum().backward(inputs=[x], retain_graph=True)
    y.sum().backward(inputs=[y])
    return x.grad, y.grad


@program
def undefined_gradients(lib):
    x = lib.tensor([1.0], True)
    y = x * 1
    seen = []
    y.register_hook(lambda g: seen.append(g))
    x.register_hook(lambda g: seen.append(g))
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad))
    y.retain_grad()
    nothing(lib).apply(y).backward()
    return seen, y.grad, x.grad


@program(raises="can't replace a None gradient with a non-None value")
def tensor_hook_that_makes_a_gradient(lib):
    x = lib.tensor([1.0], True)
    x.register_hook(lambda g: lib.ones(1))
    nothing(lib).apply(x).backward()


@program
def hooks_of_written_views(lib):
    x = lib.tensor([1.0, 2.0, 3.0], True)
    y = x * 1
    view = y[:2]
    seen = []
    y.register_hook(lambda g: seen.append(("base old", g.tolist())))
    view.register_hook(lambda g: seen.append(("view old", g.tolist())))
    y.retain_grad()
    view.retain_grad()
    view.mul_(10)
    y.register_hook(lambda g: seen.append(("base new", g.tolist())))
    view.register_hook(lambda g: seen.append(("view new", g.tolist())))
    (y.sum() + (view * 3).sum()).backward()
    return seen, y.grad, view.grad, x.grad


@program
def hooks_of_three_values(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * 1
    seen = []
    for k in range(3):
        y.register_hook(lambda g, k=k: seen.append((k, g.tolist())))
        y.retain_grad()
        y.mul_(k + 2)
    y.sum().backward()
    return seen, y.retains_grad, y.grad, x.grad


@program
def hooks_removed_during_backward(lib):
    x = lib.tensor([1.0], True)
    seen = []
    x.register_hook(lambda g: seen.append("a") or handle.remove())
    handle = x.register_hook(lambda g: seen.append("b"))
    x.register_hook(lambda g: seen.append("c"))
    for _ in range(2):
        (x * 2).backward()
    return seen


@program
def a_hook_that_is_differentiated(lib):
    x, w = lib.tensor([1.0, 2.0], True), lib.tensor(5.0, True)
    y = x * x
    y.register_hook(lambda g: g * w * y)
    (g,) = lib.grad(y.sum(), x, create_graph=True)
    return g, lib.grad(g.sum(), [x, w])


@program
def post_accumulate_hook_as_an_optimiser(lib):
    x = lib.tensor([1.0, 2.0], True)

    def step(t):
        with lib.no_grad():
            t.sub_(t.grad * 0.5)
        t.grad = None

    x.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        (x * x).sum().backward()
    return x, x.grad


@program(raises="Tensor post accumulate grad hooks should return None.")
def post_accumulate_hook_that_returns(lib):
    x = lib.tensor([1.0], True)
    x.register_post_accumulate_grad_hook(lambda t: t * 2)
    (x * 2).backward()


@program(raises="post accumulate grad hooks cannot be registered on non-leaf tensors")
def post_accumulate_hook_on_a_result(lib):
    (lib.tensor([1.0], True) * 2).register_post_accumulate_grad_hook(print)


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
