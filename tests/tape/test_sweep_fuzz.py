"""Random programs: the compiled sweep against the sweep on tensors and against differences."""

import numpy as np
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import tapegrad as tg
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE

ELEMENTWISE = sorted(name for name, op in TABLE.items() if isinstance(op, Elementwise))
REDUCTIONS = ["sum", "mean", "logsumexp", "euclidean_norm", "max", "var", "prod", "cumsum"]
SHAPES = [(), (1,), (3,), (2, 3), (3, 2), (1, 3), (2, 1), (2, 3, 2), (0,), (2, 0), (40, 40)]
LARGEST = 3000


def array_of(tensor):
    return tensor.detach().numpy()


def layouts(values, kind):
    """The same values in one of several memory layouts."""
    if kind == 1 and values.ndim:
        return np.repeat(values, 2, axis=-1)[..., ::2]
    if kind == 2 and values.ndim:
        return values[::-1].copy()[::-1]
    if kind == 3:
        return np.asfortranarray(values)
    if kind == 4 and values.ndim and values.shape[0]:
        return np.broadcast_to(values[:1], values.shape)
    return values


def tame(x, domain):
    """Bring any value into a domain, smoothly."""
    low, high = domain
    return tg.sigmoid(x * 0.5) * (high - low) + low


def broadcast(x, y):
    try:
        return np.prod(np.broadcast_shapes(x.shape, y.shape), dtype=int) <= LARGEST
    except ValueError:
        return False


def elementwise(name, x, y, n):
    op, call = TABLE[name], FUNCTIONS[name]
    count = len(op.differentiable)
    domains = [op.domain(argument) for argument in op.differentiable]
    if not broadcast(x, y):
        y = x
    values = [tame(v, d) for v, d in zip((x, y)[:count], domains, strict=True)]
    if name == "where":
        return call(array_of(x) > 0.1 * (n - 5), *values)
    if op.arguments[0] == "n":
        return call(n % 3, *values)
    if op.arguments[-1] == "ties":
        return call(*values, n % 3 + 1.0)
    if count == 2 and n % 5 == 0:  # a number in place of an operand
        values[n % 2] = float(np.mean(domains[n % 2]))
    return call(*values, *(FUNCTIONS[given.name](*values) for given in op.given.values()))


def reduce(name, x, n):
    if name == "cumsum":
        return tg.cumsum(x, axis=n % x.ndim if x.ndim and n % 3 else None)
    if not x.size:
        name = "sum"
    axis = None if n % 4 == 0 or not x.ndim else n % x.ndim
    if n % 4 == 1:
        axis = tuple(range(min(2, x.ndim)))
    if name in ("var", "euclidean_norm"):  # smooth away from equal and from zero elements
        x = x * np.linspace(0.5, 1.5, x.size, dtype=x.dtype).reshape(x.shape) + 3
        if name == "var":
            return tg.var(x, axis=axis, keepdims=n % 2 == 1)
    if name == "prod":
        x = tame(x, (0.8, 1.2))
    return FUNCTIONS[name](x, axis=axis, keepdims=n % 2 == 1)


def view(x, n):
    if not x.ndim:
        return [tg.expand_dims(x, 0), tg.broadcast_to(x, (2, 3)), x.reshape(1, 1)][n % 3]
    choices = [
        lambda: x.transpose(),
        lambda: x.reshape(-1),
        lambda: x[::-1],
        lambda: x[..., 1:],
        lambda: x[:, None] if x.size * 1 < LARGEST else x,
        lambda: tg.broadcast_to(x, (2, *x.shape)) if 2 * x.size < LARGEST else x,
        lambda: tg.diagonal(x) if x.ndim > 1 else x,
        lambda: x[tuple(k // 2 for k in x.shape)] if x.size else x,
        lambda: tg.roll(x, n, axis=-1),
        lambda: x[..., ::2],
        lambda: tg.astype(x, [np.float32, np.float64][n % 2]),
        lambda: tg.moveaxis(x, 0, -1),
        lambda: tg.positive(x),
    ]
    return choices[n % len(choices)]()


def several(x, y, n):
    if not x.ndim:
        x = x.reshape(1)
    flat = y.reshape(-1)
    choices = [
        lambda: tg.concatenate([x.reshape(-1), flat, x.reshape(-1)]),
        lambda: x[np.arange(n) % x.shape[0]] if x.shape[0] else x,
        lambda: x.reshape(1, -1) @ x.reshape(-1, 1),
        lambda: tg.outer(x.reshape(-1)[:5], flat[:5]),
        lambda: tg.stack([x, x * 2], axis=-1),
        lambda: tg.einsum("i,j->j", x.reshape(-1), flat),
        lambda: (
            tg.linalg.svdvals(tame(tg.outer(x.reshape(-1)[:3], flat[:2]), (0, 1)))
            if x.size and y.size
            else x
        ),
        lambda: tg.sort(x),
        lambda: tg.split(x, [n % (x.shape[0] + 1)])[n % 2],
    ]
    return choices[n % len(choices)]()


STEP = st.tuples(
    st.sampled_from(["elementwise"] * 5 + ["reduce"] * 2 + ["view"] * 3 + ["several"]),
    st.sampled_from(ELEMENTWISE),
    st.sampled_from(REDUCTIONS),
    st.integers(0, 30),  # operands, counted from the newest
    st.integers(0, 30),
    st.integers(0, 40),
)
LEAF = st.tuples(
    st.sampled_from(SHAPES),
    st.sampled_from([np.float32, np.float64, np.float64]),
    st.integers(0, 4),
    st.booleans(),
)


def run(leaves, steps, weights):
    """Run a program on tensors; return all its values and one number."""
    pool = list(leaves)
    for kind, op, reduction, i, j, n in steps:
        x, y = pool[-1 - i % len(pool)], pool[-1 - j % len(pool)]
        if kind == "elementwise":
            z = elementwise(op, x, y, n)
        elif kind == "reduce":
            z = reduce(reduction, x, n)
        elif kind == "view":
            z = view(x, n)
        else:
            z = several(x, y, n)
        pool.append(z if z.size <= LARGEST else z.reshape(-1)[:: z.size // 100])
    total = tg.tensor(0.0)
    for k, weight in enumerate(weights):
        value = pool[-1 - k * 2 % len(pool)]
        total = total + tg.sum(tame(value, (0, 1)) * weight)
    return pool, total


def build(leaves, seed):
    rng = np.random.default_rng(seed)
    arrays = []
    for shape, dtype, layout, _ in leaves:
        arrays.append(layouts(rng.uniform(-1, 1, shape).astype(dtype), layout))
    return arrays


def make(arrays, active):
    return [
        tg.as_tensor(a.view()).requires_grad_() if on else tg.as_tensor(a.view())
        for a, on in zip(arrays, active, strict=True)
    ]


def agree(a, b, single, what):
    if a is None or b is None:
        found = b if a is None else a
        assert found is None or not array_of(found).any(), what
        return
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    a, b = array_of(a).astype(float), array_of(b).astype(float)
    scale = max(1.0, np.abs(b[np.isfinite(b)]).max(initial=0.0))
    tolerance = 2e-3 if single else 1e-9
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale, err_msg=what)


PROGRAM = {
    "leaves": st.lists(LEAF, min_size=1, max_size=4),
    "steps": st.lists(STEP, min_size=1, max_size=14),
    "weights": st.lists(st.floats(0.5, 1.5), min_size=1, max_size=4),
    "seed": st.integers(0, 1000),
}
SETTINGS = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


def prepared(leaves, steps, weights, seed):
    arrays = build(leaves, seed)
    active = [on for *_, on in leaves]
    tensors = make(arrays, active)
    with np.errstate(all="ignore"):
        pool, total = run(tensors, steps, weights)
    assume(total.requires_grad)
    assume(np.isfinite(total.item()))
    single = any(p.dtype == np.float32 for p in pool)
    return arrays, active, tensors, pool, total, single


@given(**PROGRAM)
@SETTINGS
def test_both_sweeps_agree(leaves, steps, weights, seed):
    """With respect to every leaf and every intermediate value; then once more, freeing."""
    _, _, tensors, pool, total, single = prepared(leaves, steps, weights, seed)
    inputs = [p for p in pool if p.requires_grad]
    compiled = tg.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
    recorded = tg.autograd.grad(
        total, inputs, create_graph=True, retain_graph=True, allow_unused=True
    )
    for k, (a, b) in enumerate(zip(compiled, recorded, strict=True)):
        agree(a, b, single, f"input {k} of {len(inputs)}")
    total.backward()
    active = [t for t in tensors if t.requires_grad]
    for k, t in enumerate(active):
        agree(t.grad, compiled[k], single, f"leaf {k}")


@given(data=st.data(), **PROGRAM)
@SETTINGS
def test_any_subset_of_inputs(data, leaves, steps, weights, seed):
    """In any order and number, what is asked for does not depend on what else is asked for."""
    _, _, _, pool, total, single = prepared(leaves, steps, weights, seed)
    inputs = [p for p in pool if p.requires_grad]
    everything = tg.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
    places = st.lists(st.integers(0, len(inputs) - 1), min_size=1, max_size=5)
    for _ in range(3):
        chosen = data.draw(places)
        found = tg.autograd.grad(
            total, [inputs[k] for k in chosen], retain_graph=True, allow_unused=True
        )
        for k, g in zip(chosen, found, strict=True):
            agree(g, everything[k], single, f"{k} among {chosen}")
    last = data.draw(st.integers(0, len(inputs) - 1))
    (g,) = tg.autograd.grad(total, inputs[last], allow_unused=True)
    agree(g, everything[last], single, f"{last}, freeing")


@given(**PROGRAM)
@SETTINGS
def test_differences(leaves, steps, weights, seed):
    """In double precision, gradients are the limits of differences."""
    # no repeated elements, which would be ties that a difference breaks
    leaves = [(shape, np.float64, layout % 4, on) for shape, _, layout, on in leaves]
    steps = [s for s in steps if not (s[0] == "view" and s[-1] % 13 == 10)]  # no casts
    assume(steps)
    arrays, active, tensors, _, total, _ = prepared(leaves, steps, weights, seed)
    chosen = [t for t in tensors if t.requires_grad]
    found = tg.autograd.grad(total, chosen, allow_unused=True, materialize_grads=True)
    rng = np.random.default_rng(seed)
    tangents = [
        rng.uniform(-1, 1, a.shape) if on else 0 for a, on in zip(arrays, active, strict=True)
    ]

    def at(step):
        moved = [np.asarray(a + step * t) for a, t in zip(arrays, tangents, strict=True)]
        return run(make(moved, [False] * len(moved)), steps, weights)[1].item()

    h = 1e-5
    expected = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    moving = [t for t, on in zip(tangents, active, strict=True) if on]
    got = sum(float((array_of(g) * t).sum()) for g, t in zip(found, moving, strict=True))
    scale = max(1.0, sum(np.abs(array_of(g)).sum() for g in found))
    assert abs(got - expected) < 1e-6 * scale
