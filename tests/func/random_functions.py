"""Random programs of a matrix, a vector and a number: what batches and tangents are tried on."""

import numpy as np

import tapegrad as tg

# {a}, {b}: matrices of 2 x 3, {v}, {w}: vectors of 3, {s}: a number, {i}: a place, {m}: a mask
MATRICES = [
    "{a} * {b} + {s}",
    "tg.sin({a}) - {v}",
    "{a} / (1.0 + {b} ** 2)",
    "tg.where({m}, {a}, {b} * 2.0)",
    "{a}[::-1]",
    "{a}[:, [2, 0, 1]]",
    "tg.outer({v}[:2], {w})",
    "tg.stack([{v}, {w} * {s}])",
    "{a} @ (tg.outer({v}, {w}) + tg.eye(3))",
    "tg.cumsum({a}, axis=-1)",
    "tg.sort({a}, axis=0)",
    "{a} - {a}.mean(axis=1, keepdims=True)",
    "tg.maximum({a}, {v})",
    "np.roll({b}, 1, axis=-1)",
    "tg.reshape({a}.T, (2, 3))",
    "tg.concatenate([{a}[:1], {b}[1:]])",
    "tg.tanh({a}) * K",
    "tg.vmap(lambda row: row * {v} + {s})({a})",
    "tg.vmap(lambda c: c[::-1] * {s}, 1, 1)({b})",
    "tg.grad(lambda u: (u ** 3 * {a}).sum())({b})",
    "tg.linalg.inv(tg.eye(2) + 0.1 * {a} @ {a}.T) @ {b}",
]
VECTORS = [
    "{v} * {w} + {s}",
    "tg.exp(-{v} ** 2)",
    "{a}[{i}]",
    "{a}.sum(axis=0)",
    "{a}.max(axis=0)",
    "{v} @ (tg.outer({v}, {w}) + 1.0)",
    "{a}.T @ {b}[:, 0]",
    "tg.take({v}, tg.argsort({w}))",
    "{v}[tg.argsort({w})]",
    "tg.where({v} > {s}, {w}, {v})",
    "np.diff({v}, append={s})",
    "tg.einsum('ij,ij->j', {a}, {b})",
    "tg.abs(tg.fft.fft({v}))",
    "{v} * K[0]",
    "{b}[0] - {v}[::-1]",
    "tg.jvp(lambda u: tg.sin(u) * {w})({v}, {w})[1]",
    "tg.array([{s}, {v}[1], {w}[0] * {s}])",
    "tg.jacobian(lambda u: u * u.sum())({v}) @ {w}",
    "tg.vjp(lambda u: u * {w}, {v})[1]({v})[0]",
]
NUMBERS = [
    "{v} @ {w}",
    "{a}.sum() * 0.1",
    "{v}[{i}] * {s}",
    "tg.prod({v})",
    "tg.std({a})",
    "{a}[0, {i}]",
    "tg.logsumexp({v})",
    "{v}[tg.argmax({w})]",
    "tg.grad(lambda u: tg.sin(u) * {s})({s})",
    "tg.linalg.det(tg.eye(3) + 0.1 * tg.outer({v}, {w}))",
    "tg.sigmoid({s})",
    "tg.median({v})",
]
STATEMENTS = [
    "{a} = {a} * 1.0; {a}[0] = {v}",
    "{a} = {a} + 0.0; {a}[:, 1] *= {s}",
    "{v} = {v} + 0.0; {v}[1:] += {w}[:2]",
    "{a} = tg.zeros_like({a}); {a}[1, :2] = {v}[:2]; {a} += {b}",
    "{v} = {v} * 1.0; {v}[{w} > 0.3] = 0.5",
    "{a} = {a} * 1.0; view = {a}[0]; view *= {w}",
    "{v} = {v} * 1.0; {v}[tg.argmin({w})] = {s}",
    "{a} = {a} * 1.0; {a}.T[2] = {s}",
    "{v} = {v} * 1.0; {v}.mul_({w}).clip_(-2.0, 2.0)",
    "{v} = {v} * 1.0; np.add({v}, {w}, out={v})",
    "{a} = {a} * 1.0; row = {a}[1]; {a}[0] += row * {s}",
    "for k in range(2): {v} = {v} * {w} + 0.1 * k",
    "{v}, {w} = {w}, {v}",
]


def made(seed):
    """The text of a function of a matrix, a vector and a number."""
    rng = np.random.default_rng(seed)

    def fill(text):
        names = {
            "a": rng.choice(["a0", "a1"]), "b": rng.choice(["a0", "a1"]),
            "v": rng.choice(["v0", "v1"]), "w": rng.choice(["v0", "v1"]),
            "s": rng.choice(["s0", "s1"]), "i": rng.integers(2), "m": "a0 > 0.4",
        }  # fmt: skip
        return text.format(**names)

    lines = ["a0, v0, s0 = a, v, s", "a1, v1, s1 = a[::-1] * 0.7, v * v, s * 0.5"]
    for _ in range(rng.integers(3, 9)):
        kind = rng.integers(4)
        if kind == 3:
            lines.append(fill(rng.choice(STATEMENTS)))
        else:
            target = ("a", "v", "s")[kind] + str(rng.integers(2))
            found = fill(rng.choice((MATRICES, VECTORS, NUMBERS)[kind]))
            lines.append(f"{target} = {found}")
    lines.append("return tg.tanh(0.3 * a0 + 0.2 * a1) * (v0 + 0.5 * v1) + 0.1 * (s0 + s1)")
    return "def f(a, v, s):\n" + "".join(f"    {line}\n" for line in lines)


def program(seed):
    """A function, and a generator of its arguments."""
    rng = np.random.default_rng(10**6 + seed)
    scope = {"np": np, "tg": tg, "K": rng.uniform(0.5, 1.5, (2, 3))}
    exec(made(seed), scope)
    return scope["f"], rng


def arrays(values):
    return [v.detach().numpy() if isinstance(v, tg.Tensor) else np.asarray(v) for v in values]


def check(found, expected):
    for one, two in zip(arrays(found), arrays(expected), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-8, atol=1e-9)
