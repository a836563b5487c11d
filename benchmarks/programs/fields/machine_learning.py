"""Networks and other models with many weights."""

import numpy as np

from .registry import program


def _weights(rng, *shapes):
    return tuple(rng.standard_normal(shape) / np.sqrt(shape[0]) for shape in shapes)


def _draw_perceptron(rng):
    return (
        *_weights(rng, (20, 32), (32, 32), (32, 1)),
        *_weights(rng, (32,), (32,)),
        rng.standard_normal((256, 20)),
        rng.standard_normal((256, 1)),
    )


@program(_draw_perceptron, argnums=(0, 1, 2, 3, 4))
def perceptron(lib, w1, w2, w3, b1, b2, x, y):
    """Two hidden layers of tanh."""
    np = lib.np
    hidden = np.tanh(np.tanh(x @ w1 + b1) @ w2 + b2)
    return np.mean((hidden @ w3 - y) ** 2)


def _draw_images(rng):
    return (
        *_weights(rng, (9, 8), (288, 10)),
        rng.standard_normal((16, 14, 14)),
        rng.integers(0, 10, 16),
    )


@program(_draw_images, argnums=(0, 1))
def convolutional_network(lib, kernels, dense, images, label):
    """A layer of 3 by 3 kernels as a product with patches, a pooling, a dense layer."""
    np = lib.np
    patches = np.stack(
        [images[:, i : i + 12, j : j + 12] for i in range(3) for j in range(3)], axis=-1
    )
    hidden = np.maximum(patches @ kernels, 0.0)
    pooled = np.max(hidden.reshape(16, 6, 2, 6, 2, 8), axis=(2, 4))
    logits = pooled.reshape(16, 288) @ dense
    log_p = logits - lib.special.logsumexp(logits, axis=1, keepdims=True)
    return -np.mean(log_p[np.arange(16), label])


def _draw_attention(rng):
    return (*_weights(rng, (32, 96), (32, 32)), rng.standard_normal((4, 32, 32)))


@program(_draw_attention, argnums=(0, 1))
def attention(lib, mixing, out, x):
    """Four heads over 32 tokens that see what is before them."""
    np = lib.np
    q, k, v = np.split(x @ mixing, 3, axis=-1)

    def heads(a):
        return np.transpose(a.reshape(4, 32, 4, 8), (0, 2, 1, 3))

    q, k, v = heads(q), heads(k), heads(v)
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(8.0)
    mask = np.tril(np.ones((32, 32))) > 0
    scores = np.where(mask, scores, -1e9)
    weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    weights = weights / np.sum(weights, axis=-1, keepdims=True)
    mixed = np.transpose(weights @ v, (0, 2, 1, 3)).reshape(4, 32, 32)
    y = x + mixed @ out
    mean, var = np.mean(y, axis=-1, keepdims=True), np.var(y, axis=-1, keepdims=True)
    return np.mean(((y - mean) / np.sqrt(var + 1e-5) - np.roll(x, -1, axis=1)) ** 2)


def _draw_lstm(rng):
    return (
        *_weights(rng, (10, 64), (16, 64)),
        np.zeros(64),
        rng.standard_normal((50, 8, 10)),
        rng.standard_normal((8, 16)),
    )


@program(_draw_lstm, argnums=(0, 1, 2))
def lstm(lib, w, u, b, sequence, wanted):
    """Fifty steps of a batch of eight, sixteen units."""
    np, expit = lib.np, lib.special.expit

    def step(state, x):
        h, c = state
        gates = x @ w + h @ u + b
        i, f, g, o = gates[:, :16], gates[:, 16:32], gates[:, 32:48], gates[:, 48:]
        c = expit(f + 1.0) * c + expit(i) * np.tanh(g)
        h = expit(o) * np.tanh(c)
        return (h, c), np.mean(h**2)

    (h, _), norms = lib.scan(step, (np.zeros((8, 16)), np.zeros((8, 16))), sequence)
    return np.mean((h - wanted) ** 2) + 0.01 * np.mean(norms)


def _draw_softmax(rng):
    return (
        0.1 * rng.standard_normal((20, 5)),
        rng.standard_normal((2000, 20)),
        rng.integers(0, 5, 2000),
    )


@program(_draw_softmax)
def softmax_regression(lib, w, x, label):
    """Five classes, 2000 rows, the log-probability of each row's class picked."""
    np = lib.np
    logits = x @ w
    log_p = logits - lib.special.logsumexp(logits, axis=1, keepdims=True)
    return -np.mean(log_p[np.arange(2000), label]) + 1e-3 * np.sum(w**2)


def _draw_normalised(rng):
    return (
        *_weights(rng, (32, 64), (64, 1)),
        np.ones(64),
        np.zeros(64),
        rng.standard_normal((128, 32)),
        rng.standard_normal((128, 1)),
    )


@program(_draw_normalised, argnums=(0, 1, 2, 3))
def batch_normalisation(lib, w1, w2, scale, shift, x, y):
    """A hidden layer normalised over the batch."""
    np = lib.np
    hidden = x @ w1
    mean, var = np.mean(hidden, axis=0), np.var(hidden, axis=0)
    hidden = scale * (hidden - mean) / np.sqrt(var + 1e-5) + shift
    return np.mean((np.maximum(hidden, 0.0) @ w2 - y) ** 2)


def _draw_autoencoder(rng):
    return (
        *_weights(rng, (50, 32), (32, 16), (8, 32), (32, 50)),
        (rng.random((64, 50)) < 0.3).astype(float),
        rng.standard_normal((64, 8)),
    )


@program(_draw_autoencoder, argnums=(0, 1, 2, 3))
def variational_autoencoder(lib, w1, w2, w3, w4, x, noise):
    """The evidence bound with eight latent variables and binary data."""
    np = lib.np
    encoded = np.tanh(x @ w1) @ w2
    mean, log_var = encoded[:, :8], encoded[:, 8:]
    z = mean + np.exp(0.5 * log_var) * noise
    logits = np.tanh(z @ w3) @ w4
    reconstruction = np.sum(x * logits - np.logaddexp(0.0, logits), axis=1)
    divergence = 0.5 * np.sum(np.exp(log_var) + mean**2 - 1.0 - log_var, axis=1)
    return np.mean(divergence - reconstruction)


def _draw_words(rng):
    return (
        0.1 * rng.standard_normal((1000, 32)),
        0.1 * rng.standard_normal((1000, 32)),
        rng.integers(0, 1000, 512),
        rng.integers(0, 1000, 512),
        rng.integers(0, 1000, (512, 5)),
    )


@program(_draw_words, argnums=(0, 1))
def word_embeddings(lib, words, contexts, centre, near, others):
    """Skip-grams with five negative samples."""
    np = lib.np
    centres = words[centre]
    good = np.sum(centres * contexts[near], axis=1)
    bad = np.einsum("ik,ijk->ij", centres, contexts[others])
    return np.mean(np.logaddexp(0.0, -good)) + np.mean(np.sum(np.logaddexp(0.0, bad), axis=1))
