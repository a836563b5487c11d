"""Programs about what a Function saves, and about its node, on both libraries."""

import pytest
from libraries import Programs, backward_of_saving, double, same, saving

pytest.importorskip("torch")
program = Programs()


# -- saved tensors --------------------------------------------------------------------------------


@program
def saved_tensors_outside(lib):
    def forward(ctx, x):
        ctx.save_for_backward(x, None)
        return x * 2

    y = lib.make(forward, same).apply(lib.tensor([1.0], True))
    saved = y.grad_fn.saved_tensors
    return type(saved), saved


@program
def saved_twice(lib):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_backward(x, x)
        return x * 2

    x = lib.tensor([1.0], True)
    lib.make(forward, lambda ctx, g: g * len(ctx.saved_tensors)).apply(x).backward()
    return x.grad


@program
def saved_intermediate_has_its_value(lib):
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        return x.exp()

    seen = []

    def backward(ctx, g):
        seen.append(ctx.saved_tensors[0].detach())
        return g * ctx.saved_tensors[0]

    x = lib.tensor([1.0], True)
    (g,) = lib.grad(lib.make(forward, backward).apply(x), x, create_graph=True)
    return g.detach(), seen


@program
def what_was_saved_keeps_its_history(lib):
    seen = []

    def forward(ctx, x):
        y = x * 2
        ctx.save_for_backward(x, y)
        return y

    def backward(ctx, g):
        seen.append([(t.requires_grad, t.is_leaf, t.grad_fn) for t in ctx.saved_tensors])
        return g

    x = lib.tensor([1.0], True)
    lib.grad(lib.make(forward, backward).apply(x.exp()), x)
    return seen


@program
def saved_but_never_read_may_run_twice(lib):
    x = lib.tensor([1.0], True)
    y = lib.make(saving, lambda ctx, g: g * 3).apply(x)
    y.backward()
    y.backward()
    return x.grad


@program
def nothing_saved_may_run_twice(lib):
    x = lib.tensor([1.0], True)
    y = lib.make(double, lambda ctx, g: g * 3).apply(x)
    y.backward()
    y.backward()
    return x.grad


@program(raises="Trying to backward through the graph a second time (or directly access saved")
def second_time(lib):
    y = lib.make(saving, backward_of_saving).apply(lib.tensor([1.0], True))
    y.backward()
    y.backward()


@program(raises="after they have already been freed")
def saved_tensors_after_freeing(lib):
    y = lib.make(saving, same).apply(lib.tensor([1.0], True))
    y.backward()
    _ = y.grad_fn.saved_tensors


@program(raises="which is output 0 of Exp, is at version 1; expected version 0 instead. Hint: ")
def saved_in_another_version(lib):
    x = lib.tensor([1.0], True).exp()

    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    y = lib.make(forward, backward_of_saving).apply(x)
    x.exp_()
    y.backward()


@program(raises="which is output 0 of F, is at version 2; expected version 0 instead. Hint: ")
def saved_output_modified(lib):
    def forward(ctx, x):
        y = x * 2
        ctx.save_for_backward(y)
        return y

    y = lib.make(forward, backward_of_saving).apply(lib.tensor([1.0], True))
    z = y * 1
    with lib.no_grad():
        y.add_(1)
        y.add_(1)
    z.backward()


@program(raises="modified by an inplace operation: [torch.DoubleTensor [2]] is at version 1;")
def saved_leaf_modified(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = lib.make(saving, backward_of_saving).apply(x)
    with lib.no_grad():
        x.add_(1)
    y.sum().backward()


@program
def modified_where_it_is_not_read(lib):
    x = lib.tensor([1.0], True)
    start = x * 1
    y = lib.make(saving, lambda ctx, g: g * 3).apply(start)
    start.add_(1)
    y.backward()
    return x.grad


@program(raises="save_for_backward can only save variables, but argument 1 is of type int")
def saving_a_number(lib):
    def forward(ctx, x):
        ctx.save_for_backward(x, 1)
        return x * 2

    lib.make(forward, same).apply(lib.tensor([1.0], True))


@program
def attributes_survive_a_pass(lib):
    def forward(ctx, x):
        ctx.constant = x * 5
        return x * 2

    x = lib.tensor([1.0], True)
    y = lib.make(forward, lambda ctx, g: g * ctx.constant).apply(x)
    y.backward()
    y.backward()
    return x.grad, y.grad_fn.constant


@program
def hooks_of_saved_tensors(lib):
    seen = []

    def pack(t):
        seen.append(("pack", t.tolist()))
        return t.detach() * 10

    def unpack(t):
        seen.append(("unpack", t.tolist()))
        return t

    def forward(ctx, x):
        y = x * 2
        ctx.save_for_backward(x, None, y)
        return y

    x = lib.tensor([1.0, 2.0], True)
    with lib.graph.saved_tensors_hooks(pack, unpack):
        y = lib.make(forward, lambda ctx, g: g * ctx.saved_tensors[0]).apply(x)
    y.sum().backward()
    return seen, x.grad


# -- nodes ----------------------------------------------------------------------------------------


@program
def type_of_the_node(lib):
    f = lib.make(saving, backward_of_saving, name="Square")
    node = f.apply(lib.tensor([1.0], True)).grad_fn
    return [
        *(node.name(), type(node), type(node) is f._backward_cls, type(f)),
        *(isinstance(node, lib.graph.Node), isinstance(node, lib.function.BackwardCFunction)),
        *(isinstance(node, lib.function.FunctionCtx), f._backward_cls._forward_cls is f),
        [base.__name__ for base in f._backward_cls.__bases__],
    ]


@program
def subclasses_have_their_own_node(lib):
    base = lib.make(double, same, name="Base")
    sub = type("Sub", (base,), {})
    node = sub.apply(lib.tensor([1.0], True)).grad_fn
    return node.name(), sub._backward_cls is base._backward_cls


@program
def running_a_node(lib):
    f = lib.make(saving, backward_of_saving, jvp=lambda ctx, t: t * 7)
    node = f.apply(lib.tensor([1.0, 2.0], True)).grad_fn
    return node.apply(lib.ones(2)), node.apply_jvp(lib.ones(2))


@program
def links_of_a_node(lib):
    x, w = lib.tensor([1.0], True), lib.tensor([2.0], True)
    f = lib.make(lambda ctx, a, n, b, c: a * b, lambda ctx, g: (g, None, g, None))
    node = f.apply(x.exp(), 3, w, lib.tensor([1.0])).grad_fn
    return [(None if n is None else n.name(), k) for n, k in node.next_functions]


@program
def hooks_of_a_node(lib):
    seen = []
    x = lib.tensor([1.0, 2.0], True)
    y = lib.make(double, lambda ctx, g: seen.append(g) or g * 3).apply(x)
    y.grad_fn.register_hook(lambda ins, outs: seen.append((ins, outs)))
    y.grad_fn.register_prehook(lambda outs: (outs[0] * 2,))
    y.sum().backward()
    return seen, x.grad


@program
def hooks_of_outputs(lib):
    x = lib.tensor([1.0, 2.0], True)
    a, b = lib.make(lambda ctx, x: (x * 2, x * 3), lambda ctx, a, b: a * 2 + b * 3).apply(x)
    a.register_hook(lambda g: g * 10)
    b.retain_grad()
    (a + b).sum().backward()
    return x.grad, b.grad


# -- deprecated -----------------------------------------------------------------------------------


@program(warns="should not be instantiated. Methods on autograd functions are all static")
def instantiating(lib):
    lib.make(double, same)()


@program(
    raises="Legacy autograd function with non-static forward method is deprecated.",
    warns="should not be instantiated",
)
def calling_an_instance(lib):
    lib.make(double, same)()(lib.tensor([1.0], True))


@program(warns="`mark_shared_storage` is deprecated.")
def mark_shared_storage(lib):
    def forward(ctx, x):
        ctx.mark_shared_storage((x, x))
        return x * 2

    return lib.make(forward, same).apply(lib.tensor([1.0], True))


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
