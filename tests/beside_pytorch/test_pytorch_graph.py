"""Nodes, edges, versions and callbacks of the graph are the same on both libraries."""

import pytest
from libraries import Programs, lists, pair

pytest.importorskip("torch")
program = Programs()


def walk(node):
    return node and [node.name(), [[walk(n), k] for n, k in node.next_functions]]


# -- nodes ----------------------------------------------------------------------------------------


@program
def a_graph_and_the_same_after_backward(lib):
    x, c = lib.tensor([1.0, 2.0], True), lib.tensor([3.0, 4.0])
    y = ((x * c).exp() + x.sin() * x).sum()
    before = walk(y.grad_fn)
    y.backward()
    return before, walk(y.grad_fn) == before


@program
def node_identity(lib):
    x = lib.tensor([1.0], True)
    y = x * 2
    a = y.grad_fn.next_functions[0][0]
    return (
        y.grad_fn is y.grad_fn,
        y.grad_fn == (x * 2).grad_fn,
        (x * 3).grad_fn.next_functions[0][0] is a,
        a.variable is x,
        isinstance(y.grad_fn, lib.graph.Node),
        isinstance(a, lib.graph.Node),
        isinstance(x, lib.graph.Node),
    )


@program
def node_metadata(lib):
    y = lib.tensor([1.0], True) * 2
    y.grad_fn.metadata["key"] = 1
    z = y.exp()
    del y
    return z.grad_fn.metadata, z.grad_fn.next_functions[0][0].metadata


@program
def next_functions_of_a_function(lib):
    x, c = lib.tensor([1.0], True), lib.tensor([2.0])
    a, b = pair(lib).apply(x, 3, c)
    return a.grad_fn.next_functions, (a * b).grad_fn.next_functions, a.output_nr, b.output_nr


@program
def next_functions_of_a_concatenation(lib):
    x, c = lib.tensor([1.0], True), lib.tensor([2.0])
    return lib.concatenate([x, c, x]).grad_fn.next_functions


@program
def nodes_of_writes(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * 1
    before = y.grad_fn
    y.exp_()
    return y.grad_fn, y.grad_fn.next_functions[0][0] is before


# -- edges ----------------------------------------------------------------------------------------


@program
def edges_as_inputs(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * 3
    z = (y * y).sum()
    edges = [lib.graph.get_gradient_edge(x), lib.graph.get_gradient_edge(y)]
    del x, y
    return lib.grad(z, edges)


@program
def edges_as_outputs(lib):
    x = lib.tensor([1.0, 2.0], True)
    edge = lib.graph.get_gradient_edge(x.exp())
    lib.backward([edge, x * x], [lib.tensor([1.0, 10.0]), lib.ones(2)], retain_graph=True)
    return x.grad, lib.grad(edge, x, lib.ones(2))


@program
def edges_of_several_outputs(lib):
    x = lib.tensor([1.0, 2.0], True)
    a, b = pair(lib).apply(x, 3, x)
    edges = [lib.graph.get_gradient_edge(t) for t in (a, b, x)]
    z = (a * 2 + b * 5).sum()
    return [e.output_nr for e in edges], lib.grad(z, edges)


@program
def edges_of_written_tensors(lib):
    y = lib.tensor([1.0, 2.0], True) * 1
    edge = lib.graph.get_gradient_edge(y)
    y.mul_(3)
    return lib.grad(y.sum(), [edge, y])


@program
def edges_restrict_backward(lib):
    x, w = lib.tensor([1.0, 2.0], True), lib.tensor([3.0, 4.0], True)
    (x * w).sum().backward(inputs=lib.graph.get_gradient_edge(w))
    return x.grad, w.grad


@program(raises=True)
def edge_of_a_passive_tensor(lib):
    lib.graph.get_gradient_edge(lib.tensor([1.0]))


@program(raises=True)
def edge_that_is_unused(lib):
    x, w = lib.tensor([1.0], True), lib.tensor([2.0], True)
    lib.grad((x * 2).sum(), lib.graph.get_gradient_edge(w))


@program(raises=True)
def edge_that_cannot_become_zeros(lib):
    x, w = lib.tensor([1.0], True), lib.tensor([2.0], True)
    lib.grad((x * 2).sum(), lib.graph.get_gradient_edge(w), materialize_grads=True)


@program(raises=True)
def edge_without_a_cotangent(lib):
    x = lib.tensor([1.0, 2.0], True)
    lib.grad(lib.graph.get_gradient_edge(x * 2), x)


@program(raises="Mismatch in shape: grad_output[0] has a shape of")
def edge_with_a_wrong_cotangent(lib):
    x = lib.tensor([1.0, 2.0], True)
    lib.grad(lib.graph.get_gradient_edge(x * 2), x, lib.ones(3))


# -- several tensors, versions, callbacks ---------------------------------------------------------


@program
def multi_grad_hooks(lib):
    a, b = lib.tensor([1.0, 2.0], True), lib.tensor([3.0, 4.0], True)
    c, d = a * b, a * b
    seen = []
    register = lib.graph.register_multi_grad_hook
    register((a, b, c, d), lambda g: seen.append(lists(g)))
    handle = register((a, d), lambda g: seen.append(g.tolist()), mode="any")
    c.sum().backward(retain_graph=True)
    c.sum().backward(inputs=(a,), retain_graph=True)
    handle.remove()
    (c + d * 2).sum().backward()
    return seen


@program
def multi_grad_hooks_of_results_under_grad(lib):
    x = lib.tensor([1.0, 2.0], True)
    y, z = x * 2, x * 3
    seen = []
    lib.graph.register_multi_grad_hook((y, z), lambda g: seen.append(lists(g)))
    lib.grad((y * 5).sum() + z.sum(), x)
    return seen


@program(raises=True)
def multi_grad_hook_in_no_mode(lib):
    lib.graph.register_multi_grad_hook((lib.tensor([1.0], True),), print, mode="some")


@program
def versions(lib):
    x = lib.zeros(2)
    view, detached, data = x[:1], x.detach(), x.data
    lib.graph.increment_version([x, view])
    lib.graph.increment_version(detached)
    return x._version, view._version, detached._version, data._version


@program(raises=True)
def version_of_a_number(lib):
    lib.graph.increment_version(3)


@program(raises=True)
def version_of_numbers(lib):
    lib.graph.increment_version([3])


@program(raises="which is output 0 of Exp, is at version 1; expected version 0 instead.")
def version_found_by_backward(lib):
    y = lib.tensor([1.0], True).exp()
    lib.graph.increment_version(y)
    y.backward()


@program
def callbacks(lib):
    engine = lib.autograd.Variable._execution_engine
    x = lib.tensor([1.0, 2.0], True)
    seen = []

    def outer():
        seen.append(("outer", x.grad.tolist(), lib.is_grad_enabled()))
        engine.queue_callback(lambda: seen.append("inner"))

    y = x * 2
    y.register_hook(lambda g: engine.queue_callback(outer))
    x.register_post_accumulate_grad_hook(lambda t: seen.append("accumulated"))
    y.sum().backward()
    return seen


@program(raises=True)
def callback_outside(lib):
    lib.autograd.Variable._execution_engine.queue_callback(print)


@program(raises="expected 1 arguments, got 2 instead")
def a_node_called_with_too_many_gradients(lib):
    (lib.tensor([1.0, 2.0], True) * 2).grad_fn(lib.ones(2), lib.ones(2))


@program(raises="expected 1 arguments, got 0 instead")
def a_leaf_called_without_a_gradient(lib):
    (lib.tensor([1.0], True) * 2).grad_fn.next_functions[0][0]()


@program(raises="argument 0 is not a Variable")
def a_node_called_with_a_text(lib):
    (lib.tensor([1.0, 2.0], True) * 2).grad_fn("a")


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
