"""Error messages: the type, the words that users search for, and what they name."""

import numpy as np
import pytest
from leaves import leaf

import tapegrad as tg


def modified():
    y = leaf([1.0, 2.0]).exp()
    z = y.sum()
    y += 1
    y += 1
    z.backward()


def second_time():
    y = leaf([1.0]).exp().sum()
    y.backward()
    y.backward()


def view_of_a_leaf():
    leaf([1.0, 2.0])[0:1].add_(1.0)


def view_of_no_grad():
    y = leaf([1.0, 2.0]) * 1
    with tg.no_grad():
        view = y[0:1]
    view += 1


def several_views():
    first, _ = tg.split(leaf([1.0, 2.0]) * 1, 2)
    first += 1


CASES = {
    "second time": (
        second_time,
        RuntimeError,
        "Trying to backward through the graph a second time (or directly access saved tensors "
        "after they have already been freed)",
    ),
    "second time, remedy": (second_time, RuntimeError, "Specify retain_graph=True"),
    "modified": (
        modified,
        RuntimeError,
        "one of the variables needed for gradient computation has been modified by an inplace "
        "operation: ",
    ),
    "modified, op": (modified, RuntimeError, "which is output 0 of Exp"),
    "modified, versions": (modified, RuntimeError, "is at version 2; expected version 0 instead"),
    "modified, remedy": (modified, RuntimeError, "Hint: "),
    "leaf": (
        lambda: leaf([1.0]).add_(1.0),
        RuntimeError,
        "a leaf Variable that requires grad is being used in an in-place operation",
    ),
    "view of a leaf": (
        view_of_a_leaf,
        RuntimeError,
        "a view of a leaf Variable that requires grad is being used in an in-place operation",
    ),
    "view of no_grad": (
        view_of_no_grad,
        RuntimeError,
        "A view was created in no_grad mode and is being modified inplace with grad mode enabled",
    ),
    "several views": (
        several_views,
        RuntimeError,
        "Output 0 of Split is a view and is being modified inplace. This view is the output of a "
        "function that returns multiple views",
    ),
    "no graph": (
        lambda: tg.tensor(1.0).backward(),
        RuntimeError,
        "element 0 of tensors does not require grad and does not have a grad_fn",
    ),
    "not scalar": (
        lambda: (leaf([1.0, 2.0]) * 2).backward(),
        RuntimeError,
        "grad can be implicitly created only for scalar outputs",
    ),
    "cotangent shape": (
        lambda: (leaf([1.0, 2.0]) * 2).backward(tg.ones(3)),
        RuntimeError,
        "Mismatch in shape: grad_output[0] has a shape of",
    ),
    "integers": (
        lambda: tg.tensor([1], requires_grad=True),
        RuntimeError,
        "Only Tensors of floating point and complex dtype can require gradients",
    ),
    "nonleaf": (
        lambda: (leaf(1.0) * 2).requires_grad_(False),
        RuntimeError,
        "you can only change requires_grad flags of leaf variables. If you want to use a computed "
        "variable in a subgraph that doesn't require differentiation use var_no_grad = "
        "var.detach().",
    ),
    "numpy": (
        lambda: leaf(1.0).numpy(),
        RuntimeError,
        "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.",
    ),
    "hook": (
        lambda: tg.tensor(1.0).register_hook(print),
        RuntimeError,
        "cannot register a hook on a tensor that doesn't require gradient",
    ),
    # dtypes without derivatives
    "half result": (lambda: leaf([1.0]).astype(np.float16), TypeError, "float16"),
    # arguments of functions
    "unknown keyword": (lambda: tg.sum(leaf([1.0]), dim=0), TypeError, "sum()"),
    "missing argument": (lambda: tg.where(leaf([1.0]) > 0), TypeError, "where()"),
    "too many arguments": (
        lambda: tg.cumsum(leaf([1.0]), 0, 1, 2),
        TypeError,
        "cumsum() takes",
    ),
    "twice": (
        lambda: tg.sum(leaf([1.0]), 0, axis=0),
        TypeError,
        "sum() got",
    ),
    "take mode": (lambda: tg.take(leaf([1.0]), [0], mode="x"), ValueError, "take: mode 'x'"),
    "pad mode": (lambda: tg.pad(leaf([1.0]), 1, mode="mean"), ValueError, "pad: mode 'mean'"),
    "split": (lambda: tg.split(leaf([1.0, 2.0, 3.0]), 2), ValueError, "array_split"),
    "reshape": (lambda: leaf(np.ones(6)).reshape(4), ValueError, "reshape"),
    "broadcast": (lambda: leaf(np.ones(2)) + leaf(np.ones(3)), ValueError, "broadcast"),
    "axis": (lambda: leaf(np.ones(2)).sum(axis=3), ValueError, "axis 3 is out of bounds"),
    "axis of max": (lambda: leaf(np.ones(2)).max(axis=3), ValueError, "axis 3 is out of bounds"),
    "axis of mean": (lambda: leaf(np.ones(2)).mean(axis=3), ValueError, "axis 3 is out of bounds"),
    "axis of prod": (lambda: leaf(np.ones(2)).prod(axis=3), ValueError, "axis 3 is out of bounds"),
    "axis of flip": (lambda: leaf(np.ones(2)).flip(axis=3), ValueError, "axis 3 is out of bounds"),
    "axis of std": (lambda: leaf(np.ones(2)).std(axis=-2), ValueError, "axis -2 is out of bounds"),
    "axis of stack": (
        lambda: tg.stack([leaf([1.0])], axis=3),
        ValueError,
        "axis 3 is out of bounds",
    ),
    "axis of moveaxis": (
        lambda: tg.moveaxis(leaf(np.ones((2, 3))), 5, 0),
        ValueError,
        "axis 5 is out of bounds",
    ),
    "axis of take": (
        lambda: tg.take(leaf(np.ones(2)), [0], axis=3),
        ValueError,
        "axis 3 is out of bounds",
    ),
    "axis of repeat": (
        lambda: tg.repeat(leaf(np.ones((2, 2))), 2, axis=3),
        ValueError,
        "axis 3 is out of bounds",
    ),
    "axis of cumprod": (
        lambda: tg.cumprod(leaf(np.ones(2)), axis=3),
        ValueError,
        "axis 3 is out of bounds",
    ),
    "axis of roll": (
        lambda: tg.roll(leaf(np.ones(2)), 1, axis=3),
        ValueError,
        "axis 3 is out of bounds",
    ),
    "axis of sort": (
        lambda: tg.sort(leaf(np.ones(2)), axis=3),
        ValueError,
        "axis 3 is out of bounds",
    ),
    "axis of logsumexp": (
        lambda: tg.logsumexp(leaf(np.ones(2)), axis=3),
        ValueError,
        "axis 3 is out of bounds",
    ),
    "axis of concatenate": (
        lambda: tg.concatenate([leaf([1.0])], axis=3),
        ValueError,
        "axis 3 is out of bounds",
    ),
    "max of nothing": (lambda: tg.max(leaf([])), ValueError, "zero-size array"),
    "concatenate nothing": (lambda: tg.concatenate([]), ValueError, "at least one array"),
    "singular": (lambda: tg.linalg.inv(leaf(np.zeros((2, 2)))), np.linalg.LinAlgError, "ingular"),
    "not positive": (
        lambda: tg.linalg.cholesky(leaf(-np.eye(2))),
        np.linalg.LinAlgError,
        "ositive definite",
    ),
    "einsum": (lambda: tg.einsum("ij,jk", leaf(np.ones((2, 3)))), ValueError, "einsum"),
    "index": (lambda: leaf([1.0])[3], IndexError, "out of bounds"),
}


@pytest.mark.parametrize("name", CASES)
def test_error(name):
    function, error, text = CASES[name]
    with pytest.raises(error) as caught:
        function()
    assert text in str(caught.value)


def test_no_internal_names_in_messages():
    """Messages speak of the user's functions, not of helpers."""
    for name, (function, *_) in CASES.items():
        try:
            function()
        except Exception as caught:  # test_error looks at its type
            text = str(caught)
        else:
            continue  # test_error says so
        public = text.replace("tapegrad.where", "").replace("tapegrad.autograd.set_detect", "")
        assert "tapegrad." not in public, name
        assert "_apply" not in text, name


@pytest.mark.parametrize("name", ["second time", "modified", "not scalar", "leaf", "numpy"])
def test_state_after_an_error(name):
    function, error, _ = CASES[name]
    with pytest.raises(error):
        function()
    assert tg.is_grad_enabled()
    x = leaf([1.0, 2.0])
    (x * x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [2.0, 4.0])


def test_too_many_dimensions():
    x = leaf(np.ones((1,) * 20))
    try:
        y = (x * 2).sum()
    except ValueError as error:
        assert "dimensions" in str(error)  # noqa: PT017
    else:
        y.backward()
        assert x.grad.shape == (1,) * 20
