"""The same small programs on both libraries: values, gradients, error types and texts agree."""

import copy
import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import tapegrad as tg

torch = pytest.importorskip("torch")


def torch_library():
    def tensor(data, requires_grad=False, dtype="float64"):
        return torch.tensor(data, dtype=getattr(torch, dtype), requires_grad=requires_grad)

    return SimpleNamespace(
        name="torch",
        tensor=tensor,
        zeros=lambda *shape: torch.zeros(shape, dtype=torch.float64),
        ones=lambda *shape: torch.ones(shape, dtype=torch.float64),
        eye=lambda n: torch.eye(n, dtype=torch.float64),
        grad=torch.autograd.grad,
        backward=torch.autograd.backward,
        no_grad=torch.no_grad,
        enable_grad=torch.enable_grad,
        set_grad_enabled=torch.set_grad_enabled,
        is_grad_enabled=torch.is_grad_enabled,
        Function=torch.autograd.Function,
        concatenate=torch.cat,
        stack=torch.stack,
        where=torch.where,
        exp=torch.exp,
        sin=torch.sin,
        maximum=torch.maximum,
        split=lambda t, n: torch.split(t, t.shape[0] // n),
        index=lambda *k: torch.tensor(k),
        array=lambda t: t.detach().numpy(),
    )


def tapegrad_library():
    def tensor(data, requires_grad=False, dtype="float64"):
        return tg.tensor(data, dtype=dtype, requires_grad=requires_grad)

    return SimpleNamespace(
        name="tapegrad",
        tensor=tensor,
        zeros=lambda *shape: tg.zeros(shape),
        ones=lambda *shape: tg.ones(shape),
        eye=tg.eye,
        grad=tg.autograd.grad,
        backward=tg.autograd.backward,
        no_grad=tg.no_grad,
        enable_grad=tg.enable_grad,
        set_grad_enabled=tg.set_grad_enabled,
        is_grad_enabled=tg.is_grad_enabled,
        Function=tg.Function,
        concatenate=tg.concatenate,
        stack=tg.stack,
        where=tg.where,
        exp=tg.exp,
        sin=tg.sin,
        maximum=tg.maximum,
        split=tg.split,
        index=lambda *k: tg.tensor(list(k)),
        array=lambda t: t.detach().numpy(),
    )


def simplify(value, lib):
    """Turn a result into arrays and plain values that can be compared."""
    if isinstance(value, (torch.Tensor, tg.Tensor)):
        return np.array(lib.array(value)), bool(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return [simplify(v, lib) for v in value]
    return value


def assert_same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(ours, np.ndarray):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    else:
        assert ours == theirs


def make(lib, forward, backward):
    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("F", (lib.Function,), body)


# -- programs that work ---------------------------------------------------------------------------

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


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
    return kept[0], kept[0] is kept[2]


@program
def roots_and_cotangents(lib):
    x = lib.tensor([1.0, 2.0], True)
    a, b = x * 2, x.exp()
    lib.backward([a, b, a], [lib.tensor([1.0, 2.0]), lib.tensor([3.0, 4.0]), lib.ones(2)])
    return x.grad


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
    (x * w).sum().backward(inputs=[w])
    return x.grad, w.grad


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
def batched(lib):
    x = lib.tensor([1.0, 2.0, 3.0], True)
    return lib.grad(x**2, x, lib.eye(3), is_grads_batched=True)


@program
def mixed_dtypes(lib):
    x = lib.tensor([1.0, 2.0], True, dtype="float32")
    y = lib.tensor([3.0, 4.0], True)
    (x * y).sum().backward()
    return x.grad, y.grad


@program
def second_backward_with_nothing_saved(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = (x + 1).sum()
    y.backward()
    y.backward()
    return x.grad


@program
def mean_twice(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x.mean()
    y.backward()
    y.backward()
    return x.grad


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
def hooks_of_versions(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * 2
    seen = []
    y.register_hook(lambda g: seen.append(("old", g.tolist())))
    y.retain_grad()
    y *= 3
    y.register_hook(lambda g: seen.append(("new", g.tolist())))
    y.sum().backward()
    return seen, y.grad, x.grad


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
def writes_through_views(lib):
    x = lib.tensor([[1.0, 2.0], [3.0, 4.0]], True)
    y = x * 1
    row, column = y[0], y[:, 1]
    row *= 3
    column += row
    y[1] = row.exp()
    (y * y + column).sum().backward()
    return y, row, column, x.grad


@program
def passive_base(lib):
    x = lib.tensor([1.0, 2.0], True)
    base = lib.zeros(2, 2)
    other = base[:, 0]
    base[0] = x * 2
    return base, other, lib.grad((base * base).sum() + other.sum(), x)


@program
def versions(lib):
    x = lib.tensor([1.0, 2.0, 3.0], True)
    y = x * 1
    found = [y._version]
    y += 1
    found.append(y._version)
    y[0] = 5.0
    found.append(y._version)
    view = y[1:]
    view.mul_(2)
    found += [y._version, view._version]
    d = y.detach()
    d.zero_()
    found += [y._version, d._version]
    y.data.add_(1)
    found += [y._version]
    with lib.no_grad():
        x.add_(1)
    return [*found, x._version, (y + 1)._version, y.clone()._version]


@program
def modified_where_not_saved(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * 1
    z = y + 3
    w = y.exp()
    y.zero_()
    (z + w).sum().backward()
    return x.grad


@program
def modes(lib):
    x = lib.tensor([1.0], True)
    found = []

    @lib.no_grad()
    def off():
        return (x * 2).requires_grad

    @lib.no_grad
    def off_without_parentheses():
        return (x * 2).requires_grad

    with lib.no_grad():
        found.append((x * 2).requires_grad)
        with lib.enable_grad():
            found.append((x * 2).requires_grad)
        found.append(lib.tensor([1.0], True).requires_grad)
    with lib.set_grad_enabled(False):
        found.append((x * 2).requires_grad)
    return [*found, off(), off_without_parentheses(), lib.is_grad_enabled()]


@program
def generator_modes(lib):
    seen = []

    @lib.no_grad()
    def g():
        try:
            got = yield lib.is_grad_enabled()
            seen.append((got, lib.is_grad_enabled()))
            yield lib.is_grad_enabled()
        except ValueError:
            seen.append(("caught", lib.is_grad_enabled()))
            yield 3
        finally:
            seen.append(("end", lib.is_grad_enabled()))

    a = g()
    seen.append(next(a))
    seen.append(lib.is_grad_enabled())
    seen.append(a.send("x"))
    seen.append(a.throw(ValueError()))
    a.close()
    return seen


@program
def attributes(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x * 2
    view = y[:1]
    with lib.no_grad():
        z = x * 2
    return [
        *(x.is_leaf, y.is_leaf, z.is_leaf, x.requires_grad, y.requires_grad, z.requires_grad),
        *(x.grad is None, x.grad_fn is None, y.grad_fn is None, z.grad_fn is None),
        *(view._base is y, y._base is None, x.detach().requires_grad, x.data.requires_grad),
        *(x.retains_grad, y.retains_grad),
    ]


@program
def function_with_everything(lib):
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
    a, b, c = make(lib, forward, backward).apply(x, 5, y)
    c.sum().backward()
    return a, b, c, seen, x.grad, y.grad


@program
def function_without_materializing(lib):
    seen = []

    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 1, x * 2

    def backward(ctx, a, b):
        seen.append((a is None, b is None))
        return b * 2

    x = lib.tensor([1.0], True)
    _, b = make(lib, forward, backward).apply(x)
    b.sum().backward()
    return seen, x.grad


@program
def function_none_gradients(lib):
    f = make(lib, lambda ctx, x, y: x * y, lambda ctx, g: (None, g * 2, None))
    x, y = lib.tensor([1.0], True), lib.tensor([2.0], True)
    return lib.grad(f.apply(x, y).sum(), [x, y], allow_unused=True)


@program
def function_larger_gradient(lib):
    f = make(lib, lambda ctx, x: x * 2, lambda ctx, g: lib.ones(3, 2))
    x = lib.tensor([1.0, 2.0], True)
    return lib.grad(f.apply(x).sum(), x)


@program
def function_twice(lib):
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y * x

    def backward(ctx, g):
        x, _y = ctx.saved_tensors
        return g * (x.exp() * x + x.exp())

    x = lib.tensor([0.5, 1.0], True)
    (g,) = lib.grad(make(lib, forward, backward).apply(x).sum(), x, create_graph=True)
    return g, lib.grad(g.sum(), x)


@program
def function_returning_its_input(lib):
    f = make(lib, lambda ctx, x: x, lambda ctx, g: g * 5)
    x = lib.tensor([1.0], True)
    y = f.apply(x)
    y.backward()
    return y is x, y.is_leaf, x.is_leaf, y, x.grad


@program
def function_of_anything(lib):
    f = make(lib, lambda ctx, x: (x * 2, "text", None, 3), lambda ctx, g, *others: g)
    x = lib.tensor([1.0], True)
    y, *others = f.apply(x)
    y.sum().backward()
    return others, x.grad


@program
def function_saved_tensors_outside(lib):
    held = []

    def forward(ctx, x):
        held.append(ctx)
        ctx.save_for_backward(x, None)
        return x * 2

    x = lib.tensor([1.0], True)
    y = make(lib, forward, lambda ctx, g: g).apply(x)
    saved = held[0].saved_tensors
    return type(saved).__name__, len(saved), saved[1], y


@program
def assignments(lib):
    x, v = lib.tensor([1.0, 2.0, 3.0], True), lib.tensor([5.0, 6.0], True)
    y = x * 1
    y[1:] = v
    y[lib.index(0, 2)] *= 2
    y[y > 9] = 1.0
    lib.backward((y * y).sum())
    return y, x.grad, v.grad


@program
def underscore_methods(lib):
    x = lib.tensor([0.5, 1.5], True)
    y = x * 1
    y.add_(1).mul_(2).sin_().pow_(2).neg_().div_(3).sub_(x).exp_()
    z = lib.zeros(2).copy_(y)
    y.sum().backward()
    return y, z, x.grad


@program
def data_and_detach(lib):
    x = lib.tensor([1.0, 2.0], True)
    x.data.mul_(3)
    y = x.exp()
    z = y.sum()
    y.data.mul_(2)
    z.backward()
    x.data = lib.tensor([7.0, 8.0])
    return x, x.grad, x.is_leaf


@program
def copies(lib):
    x = lib.tensor([1.0, 2.0], True)
    (x * x).sum().backward()
    y = copy.deepcopy(x)
    z = pickle.loads(pickle.dumps(x))
    return y, y.grad, y.is_leaf, z, z.requires_grad


@program
def ties(lib):
    x, y = lib.tensor([1.0, 2.0, 3.0], True), lib.tensor([1.0, 1.0, 5.0], True)
    lib.maximum(x, y).sum().backward()
    z = lib.tensor([2.0, 2.0, 1.0], True)
    z.max().backward()
    a = lib.tensor([0.0, -1.0], True)
    a.abs().sum().backward()
    return x.grad, y.grad, z.grad, a.grad


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_results(name):
    with warnings.catch_warnings(action="ignore"):
        ours, theirs = (
            simplify(PROGRAMS[name](lib), lib) for lib in (tapegrad_library(), torch_library())
        )
    assert_same(ours, theirs)


# -- programs that fail ---------------------------------------------------------------------------

FAILURES = {}


def failure(text):
    """Note a program that has to fail on both sides, with a text that has these words."""

    def note(function):
        FAILURES[function.__name__] = (function, text)
        return function

    return note


@failure("Trying to backward through the graph a second time (or directly access saved tensors")
def second_time(lib):
    y = (lib.tensor([1.0], True) ** 2).sum()
    y.backward()
    y.backward()


@failure("grad can be implicitly created only for scalar outputs")
def no_cotangent(lib):
    (lib.tensor([1.0, 2.0], True) * 2).backward()


@failure("Mismatch in shape: grad_output[0] has a shape of")
def cotangent_shape(lib):
    (lib.tensor([1.0, 2.0], True) * 2).backward(lib.ones(3))


@failure("element 0 of tensors does not require grad and does not have a grad_fn")
def no_graph(lib):
    lib.tensor([1.0]).backward()


@failure("element 1 of tensors does not require grad and does not have a grad_fn")
def second_root_has_no_graph(lib):
    x = lib.tensor(1.0, True)
    lib.backward([x * 2, lib.tensor(1.0)])


@failure("got 2 tensors and 1 gradients")
def cotangent_count(lib):
    x = lib.tensor(1.0, True)
    lib.backward([x * 2, x * 3], [lib.tensor(1.0)])


@failure("One of the differentiated Tensors does not require grad")
def passive_input(lib):
    x = lib.tensor(1.0, True)
    lib.grad(x * 2, [lib.tensor(1.0)])


@failure("appears to not have been used in the graph. Set allow_unused=True")
def unused_input(lib):
    x = lib.tensor(1.0, True)
    lib.grad(x * 2, [x, lib.tensor(1.0, True)])


@failure("Expected allow_unused to be True or not passed when materialize_grads=True")
def contradicting_arguments(lib):
    x = lib.tensor(1.0, True)
    lib.grad(x * 2, x, allow_unused=False, materialize_grads=True)


@failure("argument to `backward()` cannot be empty")
def empty_inputs(lib):
    (lib.tensor(1.0, True) * 2).backward(inputs=[])


@failure("`inputs` argument to `grad()` cannot be empty.")
def empty_inputs_of_grad(lib):
    lib.grad(lib.tensor(1.0, True) * 2, [])


@failure("both passed to `backward()`")
def two_names(lib):
    x = lib.tensor(1.0, True)
    lib.backward(x * 2, lib.tensor(1.0), grad_variables=lib.tensor(1.0))


@failure("a leaf Variable that requires grad is being used in an in-place operation")
def write_to_a_leaf(lib):
    x = lib.tensor([1.0], True)
    x += 1


@failure("a view of a leaf Variable that requires grad is being used in an in-place operation")
def write_to_a_view_of_a_leaf(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x[0:1]
    y += 1


@failure("which is output 0 of Exp")
def modified_names_the_op(lib):
    y = lib.tensor([1.0, 2.0], True).exp()
    z = y.sum()
    y += 1
    z.backward()


@failure("is at version 2; expected version 0 instead. Hint: ")
def modified_names_the_versions(lib):
    y = lib.tensor([1.0, 2.0], True).exp()
    z = y.sum()
    y += 1
    y += 1
    z.backward()


@failure(
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)
def modified_under_create_graph(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x.exp()
    z = y.sum()
    y.detach().zero_()
    lib.grad(z, x, create_graph=True)


@failure("A view was created in no_grad mode and is being modified inplace with grad mode enabled.")
def view_of_no_grad(lib):
    y = lib.tensor([1.0, 2.0], True) * 1
    with lib.no_grad():
        v = y[:1]
    v += 1


@failure("This view is the output of a function that returns multiple views.")
def one_of_several_views(lib):
    y = lib.tensor([1.0, 2.0], True) * 1
    a, _ = lib.split(y, 2)
    a += 1


@failure("This view was created inside a custom Function (or because an input was returned as-is)")
def view_from_a_function(lib):
    y = make(lib, lambda ctx, x: x, lambda ctx, g: g).apply(lib.tensor([1.0], True) * 1)
    y += 1


@failure("output with shape [2] doesn't match the broadcast shape [3, 2]")
def growing_in_place(lib):
    y = lib.zeros(2)
    y += lib.ones(3, 2)


@failure("can't be cast to the desired output type")
def lossy_cast(lib):
    y = lib.tensor([1, 2], dtype="int64")
    y *= 1.5


@failure("cannot register a hook on a tensor that doesn't require gradient")
def hook_on_a_passive_tensor(lib):
    lib.tensor([1.0]).register_hook(lambda g: None)


@failure("has changed the size of value")
def hook_changes_the_size(lib):
    x = lib.tensor([1.0, 2.0], True)
    x.register_hook(lambda g: g[:1])
    (x * 2).sum().backward()


@failure("hook")
def hook_returns_a_number(lib):
    x = lib.tensor([1.0, 2.0], True)
    x.register_hook(lambda g: 1.0)
    (x * 2).sum().backward()


@failure("can't retain_grad on Tensor that has requires_grad=False")
def retain_grad_of_a_passive_tensor(lib):
    lib.tensor([1.0]).retain_grad()


@failure("Only Tensors of floating point and complex dtype can require gradients")
def integers_require_grad(lib):
    lib.tensor([1], True, dtype="int64")


@failure("you can only change requires_grad flags of leaf variables.")
def requires_grad_of_a_nonleaf(lib):
    (lib.tensor([1.0], True) * 2).requires_grad_(False)


@failure("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
def numpy_of_a_leaf(lib):
    lib.tensor([1.0], True).numpy()


@failure("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
def array_of_a_leaf(lib):
    np.asarray(lib.tensor([1.0], True))


@failure("assigned grad expected to be a Tensor or None but got grad of type str")
def grad_of_a_wrong_type(lib):
    lib.tensor([1.0], True).grad = "s"


@failure("assign")
def grad_of_a_wrong_shape(lib):
    lib.tensor([1.0], True).grad = lib.ones(3)


@failure("can't assign Variable as its own grad")
def grad_is_itself(lib):
    x = lib.tensor([1.0], True)
    x.grad = x


@failure("Variable data has to be a tensor, but got int")
def data_of_a_wrong_type(lib):
    lib.tensor([1.0], True).data = 3


@failure("len() of a 0-d tensor")
def length_of_a_scalar(lib):
    len(lib.tensor(1.0))


@failure("iteration over a 0-d tensor")
def iteration_over_a_scalar(lib):
    list(lib.tensor(1.0))


@failure("")
def index_of_a_float(lib):
    range(lib.tensor(1.5))


@failure("")
def adding_a_string(lib):
    lib.tensor([1.0], True) + "a"


@failure("")
def adding_none(lib):
    lib.tensor([1.0], True) + None


@failure("function FBackward returned an incorrect number of gradients (expected 1, got 2)")
def too_many_gradients(lib):
    f = make(lib, lambda ctx, x: x * 2, lambda ctx, g: (g, g))
    f.apply(lib.tensor([1.0], True)).backward()


@failure("function FBackward returned an incorrect number of gradients (expected 2, got 1)")
def too_few_gradients(lib):
    x = lib.tensor([1.0], True)
    make(lib, lambda ctx, x, y: x * y, lambda ctx, g: g).apply(x, x).backward()


@failure("expected Variable or None (got float)")
def gradient_is_a_number(lib):
    make(lib, lambda ctx, x: x * 2, lambda ctx, g: 1.0).apply(lib.tensor([1.0], True)).backward()


@failure(
    "Function FBackward returned an invalid gradient at index 0 - got [10] but expected shape "
    "compatible with [5, 5]"
)
def gradient_of_a_wrong_shape(lib):
    x = lib.ones(5, 5).requires_grad_()
    make(lib, lambda ctx, x: x * 2, lambda ctx, g: lib.ones(10)).apply(x).sum().backward()


@failure("invalid gradient at index 0 - got [1] but expected shape compatible with [2]")
def gradient_that_is_smaller(lib):
    x = lib.ones(2).requires_grad_()
    make(lib, lambda ctx, x: x * 2, lambda ctx, g: lib.ones(1)).apply(x).sum().backward()


@failure(
    "function FBackward returned a gradient different than None at position 2, but the "
    "corresponding forward input was not a Variable"
)
def gradient_of_a_number(lib):
    f = make(lib, lambda ctx, x, n: x * n, lambda ctx, g: (g, g))
    f.apply(lib.tensor([1.0], True), 2.0).backward()


@failure("save_for_backward can only save variables, but argument 0 is of type int")
def saving_a_number(lib):
    def forward(ctx, x):
        ctx.save_for_backward(1)
        return x * 2

    make(lib, forward, lambda ctx, g: g).apply(lib.tensor([1.0], True))


@failure("Implementing both 'backward' and 'vjp' for a custom Function is not allowed.")
def both_backward_and_vjp(lib):
    f = make(lib, lambda ctx, x: x * 2, lambda ctx, g: g)
    f.vjp = staticmethod(lambda ctx, g: g)
    f.apply(lib.tensor([1.0], True)).backward()


@failure("You must implement either the backward or vjp method for your custom")
def neither_backward_nor_vjp(lib):
    f = type("F", (lib.Function,), {"forward": staticmethod(lambda ctx, x: x * 2)})
    f.apply(lib.tensor([1.0], True)).backward()


@failure("You must implement the forward function for custom")
def no_forward(lib):
    type("F", (lib.Function,), {}).apply(lib.tensor([1.0], True))


@failure("Legacy autograd function with non-static forward method is deprecated.")
def calling_an_instance(lib):
    make(lib, lambda ctx, x: x, lambda ctx, g: g)()(lib.tensor([1.0], True))


@failure("Trying to backward through the graph a second time (or directly access saved tensors")
def saved_tensors_after_freeing(lib):
    held = []

    def forward(ctx, x):
        held.append(ctx)
        ctx.save_for_backward(x)
        return x * 2

    y = make(lib, forward, lambda ctx, g: g).apply(lib.tensor([1.0], True))
    y.backward()
    _ = held[0].saved_tensors


@failure("modified by an inplace operation")
def saved_by_a_function_and_modified(lib):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    x = lib.tensor([1.0], True) * 1
    y = make(lib, forward, lambda ctx, g: g * ctx.saved_tensors[0]).apply(x)
    x += 1
    y.backward()


@pytest.mark.parametrize("name", FAILURES)
def test_same_failures(name):
    function, text = FAILURES[name]
    caught = []
    for lib in (torch_library(), tapegrad_library()):
        with (
            warnings.catch_warnings(action="ignore"),
            pytest.raises(Exception) as info,
        ):
            function(lib)
        caught.append(info.value)
    theirs, ours = caught
    assert text in str(theirs)
    assert text in str(ours)
    assert isinstance(ours, type(theirs))


# -- warnings -------------------------------------------------------------------------------------

WARNINGS = {
    "reading grad": (
        lambda lib: (lib.tensor(1.0, True) * 2).grad,
        "attribute of a Tensor that is not",
    ),
    "create_graph": (
        lambda lib: (lib.tensor(1.0, True) ** 2).backward(create_graph=True),
        "create_graph=True will create a reference cycle",
    ),
    "instance": (
        lambda lib: make(lib, lambda ctx, x: x, lambda ctx, g: g)(),
        "should not be instantiated",
    ),
    "class": (lambda lib: lib.no_grad()(type("A", (), {})), "Decorating classes is deprecated"),
    "grad_variables": (
        lambda lib: lib.backward(lib.tensor(1.0, True) * 2, grad_variables=lib.tensor(1.0)),
        "grad_variables",
    ),
    "only_inputs": (
        lambda lib: (lambda x: lib.grad(x * 2, x, only_inputs=False))(lib.tensor(1.0, True)),
        "only_inputs argument is deprecated",
    ),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_same_warnings(name):
    function, text = WARNINGS[name]
    categories = []
    for lib in (torch_library(), tapegrad_library()):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(lib)
        found = [w for w in caught if text in str(w.message)]
        assert len(found) == 1, lib.name
        categories.append(found[0].category)
    assert categories[0] is categories[1]
