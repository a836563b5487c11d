"""Einstein summation: sums of products over axes with names.

Many operands are contracted in pairs, in an order that needs few multiplications, and large pairs
are products of matrices, for which there is BLAS::

    "ij,jk,ki->"   x, y, z   ->   "ik,ki->"   matmul(x, y), z   ->   a number
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.ops import reduction
from tapegrad.ops.array_kinds import bilinear
from tapegrad.ops.complex import conjugated
from tapegrad.ops.composite import composite
from tapegrad.ops.indexing import scatter_add
from tapegrad.ops.op import array_of, internal, rank, shape_of
from tapegrad.ops.products import matmul
from tapegrad.ops.shape import broadcast_to, reshape, transpose, unbroadcast

LETTERS = "zyxwvutsrqponmlkjihgfedcbaZYXWVUTSRQPONMLKJIHGFEDCBA"  # for unnamed axes
_FEW = 1 << 14  # multiplications for which loops are as fast as a product of matrices


@internal
@bilinear(arrays=1, of_list=True)
def contract(operands, subscripts):
    """Einstein summation of a list of operands, with explicit subscripts (see `einsum`)."""
    return np.einsum(subscripts, *operands, optimize=len(operands) > 2)


@contract.vjp("operands")
def _(g, operands, subscripts):
    inputs, output = subscripts.split("->")
    terms = inputs.split(",")
    cotangents = []
    for k, term in enumerate(terms):
        others = [conjugated(operand) for j, operand in enumerate(operands) if j != k]
        other_terms = [t for j, t in enumerate(terms) if j != k]
        sizes = dict(zip(term, shape_of(operands[k]), strict=True))
        known = output + "".join(other_terms)
        found = contract(
            [g, *others],
            ",".join([output, *other_terms]) + "->" + "".join(c for c in sizes if c in known),
        )
        # an axis of length 1 may have been broadcast, and an index that only this term has was
        # summed, so that all of its elements get the same cotangent
        dims = dict(zip((c for c in sizes if c in known), shape_of(found), strict=True))
        found = reshape(found, tuple(dims.get(c, 1) for c in sizes))
        found = unbroadcast(found, tuple(1 if n == 1 else dims.get(c, 1) for c, n in sizes.items()))
        found = broadcast_to(found, tuple(sizes.values()))
        if len(sizes) < len(term):  # a repeated index in the term reads a diagonal
            open_index = np.ix_(*(np.arange(n) for n in sizes.values()))
            place = dict(zip(sizes, open_index, strict=True))
            found = scatter_add(found, shape_of(operands[k]), tuple(place[c] for c in term))
        cotangents.append(found)
    return cotangents


@contract.batching
def _(operands, subscripts, batched):
    inputs, output = subscripts.split("->")
    letter = next(c for c in LETTERS if c not in subscripts)
    terms = [letter * on + term for term, on in zip(inputs.split(","), batched[0], strict=True)]
    return contract(operands, f"{','.join(terms)}->{letter}{output}")


@composite
def einsum(subscripts, *operands, optimize=None):
    """Einstein summation, with explicit or implicit output and ellipses.

    `optimize` is accepted and ignored: more than two operands are always contracted in pairs.
    """
    inputs, output = _explicit(subscripts, operands).split("->")
    terms, arrays = inputs.split(","), [*map(array_of, operands)]
    for places in _order(inputs, output, tuple(map(shape_of, arrays))):
        own = [(terms[k], arrays[k]) for k in places]
        terms = [t for k, t in enumerate(terms) if k not in places]
        arrays = [x for k, x in enumerate(arrays) if k not in places]
        needed = output if not terms else "".join(terms) + output
        term, found = _contraction(own, output if not terms else None, needed)
        terms.append(term)
        arrays.append(found)
    return arrays[0]


@functools.lru_cache(maxsize=256)
def _order(inputs: str, output: str, shapes: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    """Return which operands are contracted, step by step; results are appended to the rest."""
    if len(shapes) < 3:
        return [tuple(range(len(shapes)))]
    examples = [np.broadcast_to(0.0, shape) for shape in shapes]
    path, _ = np.einsum_path(f"{inputs}->{output}", *examples, optimize="greedy")
    return [tuple(step) for step in path[1:]]


def _contraction(
    operands: Sequence[tuple[str, Any]], output: str | None, needed: str
) -> tuple[str, Any]:
    """Contract operands.

    Parameters
    ----------
    operands
        The letters of their axes, and the operands.
    output
        The letters of the result, None if they may have any order.
    needed
        The letters that the result has, and others.

    Returns
    -------
    The letters of the result, and the result.
    """
    if len(operands) == 2:
        left, right = operands
        found = _matrix_product(left, right, needed)
        if found is not None:
            letters, product = found
            if output is None or letters == output:
                return found
            return output, transpose(product, [letters.index(c) for c in output])
    terms = [term for term, _ in operands]
    letters = "".join(c for c in dict.fromkeys("".join(terms)) if c in needed)
    letters = letters if output is None else output
    return letters, contract([x for _, x in operands], f"{','.join(terms)}->{letters}")


def _matrix_product(
    left: tuple[str, Any], right: tuple[str, Any], needed: str
) -> tuple[str, Any] | None:
    """Contract two operands as matrices or stacks of them; return None if loops do it as well."""
    operands = [_summed(*left, needed + right[0]), _summed(*right, needed + left[0])]
    (x_term, x), (y_term, y) = operands
    sizes: dict[str, int] = {}
    for term, operand in operands:
        for letter, size in zip(term, shape_of(operand), strict=True):
            if sizes.setdefault(letter, size) != size:
                return None  # an axis of length 1 is broadcast, or there is an error
    if len({*x_term}) < len(x_term) or len({*y_term}) < len(y_term):
        return None
    if math.prod(sizes.values()) <= _FEW:
        return None
    batch = [c for c in x_term if c in y_term and c in needed]
    summed = [c for c in x_term if c in y_term and c not in needed]
    rows = [c for c in x_term if c not in y_term]
    columns = [c for c in y_term if c not in x_term]
    has_vector = not rows or not columns
    if not summed or (has_vector and (batch or not (rows or columns))):
        return None

    def matrices(array: Any, term: str, *groups: list[str]) -> Any:
        order = [term.index(c) for group in groups for c in group]
        array = array if order == sorted(order) else transpose(array, order)
        shape = [math.prod(sizes[c] for c in group) for group in groups if group]
        return array if len(shape) == len(order) else reshape(array, tuple(shape))

    product = matmul(
        matrices(x, x_term, batch, rows, summed), matrices(y, y_term, batch, summed, columns)
    )
    letters = [*batch, *rows, *columns]
    shape = tuple(sizes[c] for c in letters)
    return "".join(letters), product if shape_of(product) == shape else reshape(product, shape)


def _summed(term: str, x: Any, needed: str) -> tuple[str, Any]:
    """Return an operand summed over axes that nothing else has, and their letters."""
    alone = tuple(k for k, c in enumerate(term) if c not in needed and term.count(c) == 1)
    if not alone:
        return term, x
    return "".join(c for k, c in enumerate(term) if k not in alone), reduction.sum(x, axis=alone)


def _explicit(subscripts: str, operands: tuple[Any, ...]) -> str:
    """Return subscripts with an explicit output and without ellipses."""
    text = subscripts.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(operands):
        raise ValueError(
            f"einsum: {len(terms)} terms in {subscripts!r} for {len(operands)} operands"
        )
    free = [c for c in LETTERS if c not in text]
    longest = 0
    for k, (term, operand) in enumerate(zip(terms, operands, strict=True)):
        if "..." in term:
            count = rank(operand) - (len(term) - 3)
            longest = max(longest, count)
            terms[k] = term.replace("...", "".join(free[:count][::-1]))
        if len(terms[k]) != rank(operand):
            raise ValueError(
                f"einsum: term {term!r} has {len(terms[k])} indices for an operand of "
                f"{rank(operand)} dimensions"
            )
    dots = "".join(free[:longest][::-1])
    if arrow:
        output = output.replace("...", dots)
    else:
        counts = "".join(terms)
        output = dots + "".join(
            sorted(c for c in set(counts) if counts.count(c) == 1 and c not in dots)
        )
    return ",".join(terms) + "->" + output
