"""Selective checkpointing: which results are kept."""

import functools

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

W = np.random.default_rng(0).normal(size=(4, 4))


def f(w):
    return tg.sin(tg.linalg.inv(w @ w)).sum(axis=0) * tg.exp(w)


def keeping(policy, **options):
    return functools.partial(create_selective_checkpoint_contexts, policy, **options)


def gradient(function, **options):
    w = tg.tensor(W, requires_grad=True)
    y = checkpoint(function, w, use_reentrant=False, **options) if options else function(w)
    y.sum().backward()
    return w.grad.numpy()


@pytest.mark.parametrize(
    "ops",
    [[tg.matmul], ["matmul", "inv"], [tg.linalg.inv], [tg.exp, tg.sum], ["sin"]],
)
def test_gradients(ops):
    np.testing.assert_allclose(gradient(f, context_fn=keeping(ops)), gradient(f), rtol=1e-12)


@pytest.mark.parametrize("policy", list(CheckpointPolicy))
def test_policies(policy):
    found = gradient(f, context_fn=keeping(lambda context, op, *args, **kwargs: policy))
    np.testing.assert_allclose(found, gradient(f), rtol=1e-12)


def test_several_results():
    def values(w):
        values, vectors = tg.linalg.eigh(w + w.T)
        return values * tg.exp(vectors[0] ** 2)

    found = gradient(values, context_fn=keeping([tg.linalg.eigh]))
    np.testing.assert_allclose(found, gradient(values), rtol=1e-12)


def test_kept_results_are_not_computed_again(monkeypatch):
    calls = []
    op = tg.ops.table.op.TABLE["inv"]
    compute = op.function
    monkeypatch.setattr(op, "function", lambda x: (calls.append(x), compute(x))[1])
    gradient(f, context_fn=keeping([tg.linalg.inv]))
    assert len(calls) == 1
    calls.clear()
    gradient(f, context_fn=keeping([tg.exp]))
    assert len(calls) == 2


def test_what_a_policy_gets():
    seen = []

    def policy(context, op, *args, **kwargs):
        seen.append((op, [np.shape(a) for a in args], kwargs, context.op_output.shape))
        tg.sum(args[0])  # is not asked about
        return False

    gradient(lambda w: tg.exp(tg.sum(w @ w, axis=1)), context_fn=keeping(policy))
    assert [op for op, *_ in seen] == [tg.matmul, tg.sum, tg.exp]
    assert seen[1][1:] == ([(4, 4)], {"axis": 1, "keepdims": False}, (4,))


def test_kept_results_that_are_written_to():
    def function(w):
        y = w @ w
        z = tg.sum(y, axis=0)
        y.add_(1)
        return tg.exp(z) * tg.sin(w)

    found = gradient(function, context_fn=keeping([tg.matmul], allow_cache_entry_mutation=True))
    np.testing.assert_allclose(found, gradient(function), rtol=1e-12)
    with pytest.raises(RuntimeError, match="Tensor cached during selective activation"):
        gradient(function, context_fn=keeping([tg.matmul]))


def test_inside_of_another_region():
    def outer(w):
        return checkpoint(f, tg.sin(w), use_reentrant=False, context_fn=keeping([tg.matmul])) * w

    found = gradient(outer, context_fn=keeping([tg.sin]))
    np.testing.assert_allclose(found, gradient(lambda w: f(tg.sin(w)) * w), rtol=1e-12)


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (tg.linalg.norm, "norm is computed by other ops; name those"),
        (tg.transpose, "transpose returns a view"),
        (np.matmul, "Expected op in `op_list` to be a function of tapegrad"),
        ("nothing", "Expected op in `op_list` to be a function of tapegrad"),
        (tg.equal, "Expected op in `op_list` to be a function of tapegrad"),
    ],
)
def test_refused(op, text):
    with pytest.raises(ValueError, match=text):
        create_selective_checkpoint_contexts([op])
