"""Random numbers that depend differentiably on their parameters.

The functions have the names and parameters of `numpy.random.Generator`. A parameter may be a
tensor; gradients are those of the sample at fixed randomness (reparameterisation). They draw from a
default generator of the process, seeded by `seed`; `default_rng` makes generators of one's own.

Examples
--------
>>> import tapegrad as tg
>>> tg.random.seed(0)
>>> scale = tg.tensor(2.0, requires_grad=True)
>>> z = tg.random.normal(1.0, scale, size=3)
>>> z
tensor([1.25146044, 0.73579027, 2.2808453 ], grad_fn=<AddBackward>)
>>> z.sum().backward()
>>> scale.grad  # the sum of (z - 1) / 2
tensor(0.63404801)
"""

from typing import Any

from tapegrad.random.generator import Generator, default_rng

__all__ = [
    "Generator", "bernoulli", "beta", "binomial", "choice", "default_rng", "dirichlet",
    "exponential", "gamma", "get_state", "gumbel", "integers", "laplace", "logistic",
    "multivariate_normal", "normal", "permutation", "poisson", "random", "seed", "set_state",
    "standard_exponential", "standard_gamma", "standard_normal", "standard_t", "student_t",
    "uniform",
]  # fmt: skip

# NumPy's generators lock themselves for each draw, so that threads may share it
_DEFAULT = Generator()

bernoulli = _DEFAULT.bernoulli
beta = _DEFAULT.beta
binomial = _DEFAULT.binomial
choice = _DEFAULT.choice
dirichlet = _DEFAULT.dirichlet
exponential = _DEFAULT.exponential
gamma = _DEFAULT.gamma
gumbel = _DEFAULT.gumbel
integers = _DEFAULT.integers
laplace = _DEFAULT.laplace
logistic = _DEFAULT.logistic
multivariate_normal = _DEFAULT.multivariate_normal
normal = _DEFAULT.normal
permutation = _DEFAULT.permutation
poisson = _DEFAULT.poisson
random = _DEFAULT.random
standard_exponential = _DEFAULT.standard_exponential
standard_gamma = _DEFAULT.standard_gamma
standard_normal = _DEFAULT.standard_normal
standard_t = _DEFAULT.standard_t
student_t = _DEFAULT.student_t
uniform = _DEFAULT.uniform


def seed(seed: Any = None) -> None:
    """Start the default generator anew.

    Threads share the default generator. Calls from several threads are safe, but which of them gets
    which numbers depends on their order: give each a generator of its own (`Generator.spawn`).

    Parameters
    ----------
    seed
        As for `default_rng`; None takes entropy from the operating system.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.random.seed(1)
    >>> first = tg.random.normal(size=2)
    >>> tg.random.seed(1)
    >>> bool((tg.random.normal(size=2) == first).all())
    True
    """
    _DEFAULT.restart(seed)


def get_state() -> dict[str, Any]:
    """Return the state of the default generator, for `set_state`.

    Examples
    --------
    >>> import tapegrad as tg
    >>> state = tg.random.get_state()
    >>> first = tg.random.random()
    >>> tg.random.set_state(state)
    >>> bool(tg.random.random() == first)
    True
    """
    return _DEFAULT.state


def set_state(state: dict[str, Any]) -> None:
    """Set the state of the default generator.

    Parameters
    ----------
    state
        What `get_state` returned, or the state of a bit generator of NumPy's of the same kind.
    """
    _DEFAULT.state = state
