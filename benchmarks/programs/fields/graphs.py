"""Graphs: lists of edges, Laplacians, segment sums."""

from .registry import program


def _draw_pages(rng):
    return rng.random(3000) + 0.1, rng.integers(0, 300, 3000), rng.integers(0, 300, 3000)


@program(_draw_pages)
def page_rank(lib, weights, source, target):
    """Fifty power iterations over 3000 weighted links of 300 pages."""
    np = lib.np
    out = lib.bincount(source, weights, 300) + 1e-9
    share = weights / out[source]

    def step(i, rank):
        return 0.15 / 300 + 0.85 * lib.add_at(np.zeros(300), target, share * rank[source])

    rank = lib.fori_loop(0, 50, step, np.ones(300) / 300)
    return np.sum(rank**2) * 300 + np.log(rank[7])


def _draw_convolution(rng):
    return (
        0.3 * rng.standard_normal((16, 16)),
        0.3 * rng.standard_normal((16, 4)),
        rng.standard_normal((500, 16)),
        rng.integers(0, 500, 3000),
        rng.integers(0, 500, 3000),
        rng.integers(0, 4, 500),
    )


@program(_draw_convolution, argnums=(0, 1))
def graph_convolution(lib, first, second, features, source, target, label):
    """Two layers of means over neighbours, and a classification of the nodes."""
    np = lib.np
    degree = lib.bincount(target, np.ones(3000), 500) + 1.0

    def spread(x):
        return lib.add_at(x, target, x[source]) / degree[:, None]

    hidden = np.maximum(spread(features) @ first, 0.0)
    logits = spread(hidden) @ second
    log_p = logits - lib.special.logsumexp(logits, axis=1, keepdims=True)
    return -np.mean(log_p[np.arange(500), label])


def _draw_embedding(rng):
    weights = rng.random((40, 40))
    return weights, rng.standard_normal((40, 40))


@program(_draw_embedding)
def spectral_embedding(lib, weights, wanted):
    """The projection on the smoothest vectors of a graph with 40 nodes."""
    np = lib.np
    w = 0.5 * (weights + weights.T)
    degree = np.sum(w, axis=1)
    root = 1.0 / np.sqrt(degree)
    laplacian = np.eye(40) - root[:, None] * w * root[None, :]
    values, vectors = np.linalg.eigh(laplacian)
    low = vectors[:, 1:4]
    return np.sum((low @ low.T) * wanted) + np.sum(values[:4])


def _draw_segments(rng):
    return rng.standard_normal(50000), rng.integers(0, 1000, 50000)


@program(_draw_segments)
def segment_sums(lib, values, index):
    """Means and deviations of 50 000 numbers in 1000 groups."""
    np = lib.np
    count = lib.bincount(index, np.ones(50000), 1000) + 1e-9
    mean = lib.bincount(index, values, 1000) / count
    variance = lib.bincount(index, (values - mean[index]) ** 2, 1000) / count
    return np.sum(np.sqrt(variance + 1e-3)) + np.sum(mean**2)
