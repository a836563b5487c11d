"""Checkpointing does the same on both libraries."""

import functools

import pytest
from libraries import Programs

pytest.importorskip("torch")
program = Programs()


def tools(lib):
    return lib.package.utils.checkpoint


def f(x):
    return (x * x).exp().sin()


def leaf(lib, requires_grad=True):
    return lib.tensor([0.5, 1.0], requires_grad)


def checked(lib, function, *args, **options):
    return tools(lib).checkpoint(function, *args, **{"use_reentrant": False, **options})


def gradient(lib, function, **options):
    x = leaf(lib)
    y = checked(lib, function, x, **options)
    y.sum().backward()
    return y, x.grad


def counting(lib, first, again):
    """A function that is another one when it is called for the second time."""
    calls = []

    def function(x):
        calls.append(x)
        return first(x) if len(calls) % 2 else again(x)

    return function


# -- values and gradients -------------------------------------------------------------------------


@program
def a_gradient(lib):
    return gradient(lib, f)


@program
def a_gradient_by_the_reentrant_form(lib):
    return gradient(lib, f, use_reentrant=True)


@program
def nested(lib):
    return gradient(lib, lambda x: checked(lib, f, x) * x)


@program
def nested_three_times(lib):
    return gradient(lib, lambda x: checked(lib, lambda x: checked(lib, f, x * x).exp(), x) * x)


@program
def a_reentrant_one_inside(lib):
    return gradient(lib, lambda x: checked(lib, f, x, use_reentrant=True) * x)


@program
def inside_of_a_reentrant_one(lib):
    return gradient(lib, lambda x: checked(lib, f, x) * x, use_reentrant=True)


@program
def second_derivatives(lib):
    x = leaf(lib)
    (g,) = lib.grad(checked(lib, f, x).sum(), x, create_graph=True)
    (h,) = lib.grad((g * g).sum(), x, create_graph=True)
    return g, h, lib.grad(h.sum(), x)


@program
def a_gradient_inside(lib):
    return gradient(lib, lambda x: lib.grad((x * x).exp().sum(), x, create_graph=True)[0])


@program
def grad_and_inputs(lib):
    x, w = leaf(lib), leaf(lib)
    y = checked(lib, lambda x: (x * w).exp(), x).sum()
    found = lib.grad(y, w, retain_graph=True)
    y.backward(inputs=[x])
    return found, x.grad, w.grad


@program
def two_backward_passes(lib):
    x = leaf(lib)
    y = checked(lib, f, x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


@program
def two_backward_passes_of_the_reentrant_form(lib):
    x = leaf(lib)
    y = checked(lib, f, x, use_reentrant=True).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


@program
def tensors_in_containers_and_keywords(lib):
    x, w, b = leaf(lib), leaf(lib), leaf(lib)
    y = checked(lib, lambda p, scale=None: p["x"][0] * p["x"][1] * scale, {"x": [x, w]}, scale=b)
    y.sum().backward()
    return x.grad, w.grad, b.grad


@program
def other_arguments_and_results(lib):
    x = leaf(lib)
    y, n, nothing = checked(lib, lambda x, n, flag: (x.exp() * n, n, None), x, 3, flag=True)
    y.sum().backward()
    return n, nothing, x.grad


@program
def several_results_of_the_reentrant_form(lib):
    x = leaf(lib)
    y, n, z = checked(lib, lambda x: (x * 2, 3, x * x), x, use_reentrant=True)
    z.sum().backward()
    return y, n, z, x.grad


@program
def tensors_closed_over(lib):
    found = []
    for form in (False, True):
        x, w = leaf(lib), leaf(lib)
        checked(lib, lambda x: (x * w).exp(), x, use_reentrant=form).sum().backward()
        found += [x.grad, w.grad]
    return found


@program
def arguments_that_do_not_require_grad(lib):
    x, w = leaf(lib, False), leaf(lib)
    checked(lib, lambda x: (x * w).exp(), x).sum().backward()
    return x.grad, w.grad


@program
def in_place_inside(lib):
    def function(x):
        y = x * 1
        y.add_(1)
        return y.exp()

    return gradient(lib, function)


@program
def hooks_of_the_result(lib):
    x = leaf(lib)
    y = checked(lib, f, x)
    y.register_hook(lambda g: g * 2)
    y.sum().backward()
    return x.grad


@program
def without_recording(lib):
    found = []
    for mode in (lib.no_grad, lib.inference_mode):
        with mode():
            found += [checked(lib, f, leaf(lib), use_reentrant=form) for form in (True, False)]
    return found


@program
def checks_of_gradients(lib):
    def function(x):
        return checked(lib, f, x)

    return lib.gradcheck(function, leaf(lib)), lib.gradgradcheck(function, leaf(lib))


@program
def outer_hooks_see_the_arguments_alone(lib):
    seen = []

    def pack(t):
        seen.append(("packs", t.detach().tolist()))
        return t

    def unpack(t):
        seen.append(("unpacks", t.detach().tolist()))
        return t

    x = leaf(lib)
    with lib.graph.saved_tensors_hooks(pack, unpack):
        y = checked(lib, f, x)
    y.sum().backward()
    return seen, x.grad


@program
def a_function_in_it(lib):
    def forward(ctx, x):
        y = x * x
        ctx.save_for_backward(x, y)
        return y

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return 2 * g * x + 0 * y

    op = lib.make(forward, backward)
    return gradient(lib, lambda x: op.apply(x.exp()).sin())


# -- what is called -------------------------------------------------------------------------------


def called(lib, passes=1, setting=None, **options):
    calls = []

    def function(x):
        calls.append("begins")
        y = x.exp()
        calls.append("exp")
        z = y.sin()
        calls.append("sin")
        return z * 1

    x = leaf(lib)
    if setting is None:
        y = checked(lib, function, x, **options)
    else:
        with tools(lib).set_checkpoint_early_stop(setting):
            y = checked(lib, function, x, **options)
    for k in range(passes):
        y.sum().backward(retain_graph=k < passes - 1)
    return calls, x.grad


@program
def it_stops_early(lib):
    return called(lib), called(lib, passes=2)


@program
def it_does_not_stop_early(lib):
    return called(lib, early_stop=False), called(lib, passes=2, early_stop=False)


@program
def the_setting_replaces_the_argument(lib):
    return called(lib, setting=False), called(lib, setting=True, early_stop=False)


@program
def nested_calls(lib):
    calls = []

    def inner(x):
        calls.append("inner")
        return x.exp().sin()

    def outer(x):
        calls.append("outer")
        return checked(lib, inner, x * x).exp()

    return gradient(lib, outer), calls


# -- sequences ------------------------------------------------------------------------------------


def in_sequence(lib, segments, count=5, **options):
    x = leaf(lib)
    functions = [lib.sin, lib.exp, lib.cos, lib.sin, lib.exp][:count]
    y = tools(lib).checkpoint_sequential(functions, segments, x, **options)
    y.sum().backward()
    return y, x.grad


@program
def sequences(lib):
    return [
        in_sequence(lib, segments, use_reentrant=form)
        for segments in (1, 2, 3, 5)
        for form in (False, True)
    ]


@program(raises="Unexpected keyword arguments: foo")
def a_sequence_with_a_keyword(lib):
    in_sequence(lib, 2, use_reentrant=False, foo=1)


@program(warns="the use_reentrant parameter should be passed explicitly.")
def a_sequence_without_the_form(lib):
    return in_sequence(lib, 2)


# -- texts ----------------------------------------------------------------------------------------


@program(warns="the use_reentrant parameter should be passed explicitly.")
def without_the_form(lib):
    x = leaf(lib)
    tools(lib).checkpoint(f, x).sum().backward()
    return x.grad


@program(warns="None of the inputs have requires_grad=True. Gradients will be None")
def the_reentrant_form_without_gradients(lib):
    return checked(lib, f, leaf(lib, False), use_reentrant=True)


@program(raises="Unexpected keyword arguments: a,b")
def keywords_of_the_reentrant_form(lib):
    checked(lib, f, leaf(lib), use_reentrant=True, a=1, b=2)


@program(raises="Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
def debugging_the_reentrant_form(lib):
    checked(lib, f, leaf(lib), use_reentrant=True, debug=True)


@program(raises="is incompatible with .grad() or passing an `inputs` parameter to .backward()")
def grad_of_the_reentrant_form(lib):
    x = leaf(lib)
    lib.grad(checked(lib, f, x, use_reentrant=True).sum(), x)


@program(raises="is incompatible with .grad() or passing an `inputs` parameter to .backward()")
def inputs_of_the_reentrant_form(lib):
    x = leaf(lib)
    checked(lib, f, x, use_reentrant=True).sum().backward(inputs=[x])


@program(raises="none of output has requires_grad=True, this checkpoint() is not necessary")
def the_reentrant_form_of_a_constant(lib):
    checked(lib, lambda x: x.detach() * 2, leaf(lib), use_reentrant=True).sum().backward()


@program(raises="determinism_check should be one of ['default', 'none'], but got foo")
def an_unknown_check(lib):
    checked(lib, f, leaf(lib), determinism_check="foo")


@program(raises="debug=True is incompatible with non-default context_fn")
def debugging_with_contexts(lib):
    checked(lib, f, leaf(lib), debug=True, context_fn=lambda: None)


@program(raises="A different number of tensors was saved during the original forward and recomp")
def fewer_tensors(lib):
    gradient(lib, counting(lib, lambda x: (x * x).exp(), lambda x: x * x))


@program(raises="trying to save more tensors during recomputation than during the original forward")
def more_tensors(lib):
    function = counting(lib, lambda x: x * x, lambda x: (x * x).exp())
    gradient(lib, function, early_stop=False)


@program
def more_tensors_than_are_needed(lib):
    return gradient(lib, counting(lib, lambda x: x * x, lambda x: (x * x).exp()))


@program(raises="Recomputed values for the following tensors have different metadata than during")
def other_shapes(lib):
    gradient(lib, counting(lib, lambda x: (x * x).exp(), lambda x: (x[:1] * x[:1]).exp()))


@program(raises="An error happened while unpacking tensors; dumping logs of latest computation")
def debugging(lib):
    gradient(lib, counting(lib, lambda x: (x * x).exp(), lambda x: x * x), debug=True)


@program(raises="Trying to backward through the graph a second time")
def a_second_time(lib):
    y = checked(lib, f, leaf(lib)).sum()
    y.backward()
    y.backward()


@program(raises="Trying to backward through the graph a second time")
def the_reentrant_form_a_second_time(lib):
    y = checked(lib, f, leaf(lib), use_reentrant=True).sum()
    y.backward()
    y.backward()


@program(
    raises="one of the variables needed for gradient computation has been modified by an inpla"
)
def an_argument_that_is_written_to(lib):
    h = leaf(lib) * 1
    y = checked(lib, f, h)
    h.add_(1)
    y.sum().backward()


@program(
    raises="one of the variables needed for gradient computation has been modified by an inpla"
)
def an_argument_of_the_reentrant_form_that_is_written_to(lib):
    h = leaf(lib) * 1
    y = checked(lib, f, h, use_reentrant=True)
    h.add_(1)
    y.sum().backward()


@program(
    raises="one of the variables needed for gradient computation has been modified by an inpla"
)
def writing_to_an_argument_inside(lib):
    checked(lib, lambda x: x.add_(1).exp(), leaf(lib) * 1).sum().backward()


@program(raises="no hooks, please")
def hooks_are_disabled(lib):
    with lib.graph.disable_saved_tensors_hooks("no hooks, please"):
        checked(lib, f, leaf(lib))


# -- selective ------------------------------------------------------------------------------------


def keeping(lib, allow_cache_entry_mutation=False):
    """Contexts that keep the results of exp."""
    ops = [lib.package.ops.aten.exp.default] if lib.name == "torch" else [lib.package.exp]
    return functools.partial(
        tools(lib).create_selective_checkpoint_contexts,
        ops,
        allow_cache_entry_mutation=allow_cache_entry_mutation,
    )


@program
def some_results_are_kept(lib):
    return gradient(lib, f, context_fn=keeping(lib))


@program
def what_a_policy_is_told(lib):
    policies = tools(lib).CheckpointPolicy
    seen = []

    def policy(context, op, *args, **kwargs):
        name = str(op) if lib.name == "torch" else op.__name__
        seen.append((context.is_recompute, "exp" in name, args[0].detach().tolist()))
        return policies.MUST_SAVE if "exp" in name else policies.PREFER_RECOMPUTE

    contexts = functools.partial(tools(lib).create_selective_checkpoint_contexts, policy)
    return gradient(lib, f, context_fn=contexts), seen


@program
def the_policies(lib):
    return [policy.name for policy in tools(lib).CheckpointPolicy]


@program(raises="Trying to backward an extra time. You are only allowed to backward once on any")
def selective_checkpointing_twice(lib):
    y = checked(lib, f, leaf(lib), context_fn=keeping(lib)).sum()
    y.backward(retain_graph=True)
    y.backward()


def writing(x):
    y = (x * x).exp()
    z = y * 1
    y.add_(1)
    return z.sin()


@program(raises="Tensor cached during selective activation checkpoint has been mutated")
def a_kept_result_that_is_written_to(lib):
    gradient(lib, writing, context_fn=keeping(lib))


@program(raises="invocation index 1 encountered during backward but not found in storage.")
def an_op_that_was_not_called(lib):
    function = counting(lib, lambda x: (x * x).exp().sin(), lambda x: (x * x).exp().exp().sin())
    gradient(lib, function, context_fn=keeping(lib))


@program(raises="policy_fn_or_list must be either a function or a list of ops.")
def no_policy(lib):
    tools(lib).create_selective_checkpoint_contexts(3)


@program(raises="Expected op in `op_list` to be a")
def no_op(lib):
    tools(lib).create_selective_checkpoint_contexts([3])


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
