"""Programs whose modules are compared while they are generated, and what is compared."""

import ast

import numpy as np

from tapegrad.transform import generation
from tapegrad.transform.equivalence.meanings import defined
from tests.transform.random_programs.interpret import types_only


def decays(x, rates, n):
    total = 0.0
    y = np.zeros(x.size)
    for k in range(n):
        for i in range(x.size):
            y[i] = np.exp(-rates[i] * x[i]) + 0.5 * y[i]
        total += np.sum(y * x) / (1.0 + k)
    for i in range(1, x.size):
        if x[i] > x[i - 1]:
            total += np.tanh(x[i]) * y[i - 1] ** 2
    return total


def products(x, rates, n):
    a = np.outer(x, rates)
    b = np.dot(a, a.T) + np.eye(x.size)
    return np.sum(np.sqrt(b * b + 1.0)) + np.sum(x) * n


def additions(tree):
    """Yield blocks with the places of statements that add to something in them."""
    for node in ast.walk(tree):
        for block in (getattr(node, name, None) for name in ("body", "orelse")):
            for place, statement in enumerate(block if isinstance(block, list) else ()):
                if isinstance(statement, ast.AugAssign):
                    yield block, place


def what_is_compared(transform, kinds, function, monkeypatch, folder, **options):
    """Generate modules; return what a function of generation was given in each, and its result.

    In place of the module, the text and what names refer to are given. The transform must be new:
    what was generated once in a process is not generated again.
    """
    found, texts = [], []
    original = getattr(generation, function)

    def define(functions, lookup):
        texts.append((ast.unparse(ast.Module(functions, [])), lookup))
        return defined(functions, lookup)

    def noted(module, *given):
        found.append(((*texts[-1], *given), original(module, *given)))
        return found[-1][1]

    with monkeypatch.context() as patched, types_only(**options):
        patched.setenv("TAPEGRAD_CACHE_DIR", str(folder))  # in which they are not yet
        patched.setattr(generation, "defined", define)
        patched.setattr(generation, function, noted)
        transform.source(kinds)
    return found
