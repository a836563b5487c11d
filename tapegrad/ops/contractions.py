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
from tapegrad.ops.complex import conjugated
from tapegrad.ops.indexing import scatter_add
from tapegrad.ops.products import matmul
from tapegrad.ops.shape import broadcast_to, diagonal, reshape, transpose, unbroadcast
from tapegrad.ops.table.array_kinds import bilinear
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.op import internal, plain, rank, refuse_masked, shape_of

LETTERS = "zyxwvutsrqponmlkjihgfedcbaZYXWVUTSRQPONMLKJIHGFEDCBA"  # for unnamed axes
_NUMBERED = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"  # for axes with numbers
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

    Each operand may also be followed by a list of the numbers of its axes, without a text:
    ``einsum(x, [0, 1], y, [1, 2], [0, 2])``. `optimize` is accepted and ignored: more than two
    operands are always contracted in pairs.
    """
    if not isinstance(subscripts, str):
        subscripts, operands = _with_letters(subscripts, *operands)
    for operand in operands:
        if not hasattr(operand, "shape"):
            refuse_masked(operand)
    text = _explicit(subscripts, tuple(map(rank, operands)))
    inputs, output = text.split("->")
    terms, arrays = inputs.split(","), list(operands)
    if len(arrays) == 1 and {*terms[0]} == {*output}:
        return _shown(terms[0], arrays[0], output)
    if len(arrays) < 3:
        found = _matrix_product(terms, arrays, output) if len(arrays) == 2 else None
        return contract(arrays, text) if found is None else _arranged(*found, output)
    for places in _order(inputs, output, tuple(map(shape_of, arrays))):
        own, own_terms = [arrays[k] for k in places], [terms[k] for k in places]
        terms = [t for k, t in enumerate(terms) if k not in places]
        arrays = [x for k, x in enumerate(arrays) if k not in places]
        needed = "".join(terms) + output
        found = _matrix_product(own_terms, own, needed) if len(own) == 2 else None
        if found is None:
            letters = "".join(c for c in dict.fromkeys("".join(own_terms)) if c in needed)
            found = letters, contract(own, f"{','.join(own_terms)}->{letters}")
        terms.append(found[0])
        arrays.append(found[1])
    return _arranged(terms[0], arrays[0], output)


def _with_letters(*args: Any) -> tuple[str, tuple[Any, ...]]:
    """Return subscripts with letters, and the operands, of a call with lists of axis numbers."""
    if len(args) < 2:
        raise TypeError(
            "einsum: expected subscripts such as 'ij,jk->ik' and operands, or each operand and a "
            f"list of the numbers of its axes; got one {type(args[0]).__name__}"
        )

    def letters(numbers: Any) -> str:
        try:
            return "".join("..." if n is Ellipsis else _NUMBERED[n] for n in plain(numbers))
        except (TypeError, IndexError):
            raise TypeError(
                "einsum: without a text of subscripts, a list of the numbers of its axes follows "
                f"each operand, such as [0, 1]; got {numbers!r}"
            ) from None

    operands, axes = args[: len(args) // 2 * 2 : 2], args[1::2]
    output = f"->{letters(args[-1])}" if len(args) % 2 else ""
    return ",".join(map(letters, axes)) + output, operands


def _shown(letters: str, x: Any, output: str) -> Any:
    """Return a view of an array: diagonals for repeated letters, axes in the order of the output.

    Of arrays, NumPy's own views can be written to.
    """
    if isinstance(x, np.ndarray):
        return np.einsum(f"{letters}->{output}", x)
    while len({*letters}) < len(letters):
        repeated = next(c for c in letters if letters.count(c) > 1)
        first = letters.index(repeated)
        second = letters.index(repeated, first + 1)
        if shape_of(x)[first] != shape_of(x)[second]:
            raise ValueError(
                f"einsum: axes {first} and {second} have the same letter, and the sizes "
                f"{shape_of(x)[first]} and {shape_of(x)[second]}"
            )
        x = diagonal(x, 0, first, second)
        letters = f"{letters[:first]}{letters[first + 1 : second]}{letters[second + 1 :]}{repeated}"
    return transpose(x, [letters.index(c) for c in output])


def _arranged(letters: str, x: Any, output: str) -> Any:
    """Return an array with its axes in the order of the output."""
    return x if letters == output else transpose(x, [letters.index(c) for c in output])


@functools.lru_cache(maxsize=256)
def _order(inputs: str, output: str, shapes: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    """Return which operands are contracted, step by step; results are appended to the rest."""
    examples = [np.broadcast_to(0.0, shape) for shape in shapes]
    path, _ = np.einsum_path(f"{inputs}->{output}", *examples, optimize="greedy")
    return [tuple(step) for step in path[1:]]


def _matrix_product(
    terms: Sequence[str], operands: Sequence[Any], needed: str
) -> tuple[str, Any] | None:
    """Contract two operands as matrices or stacks of them.

    Parameters
    ----------
    terms, operands
        The letters of the axes of each, and the operands.
    needed
        The letters that are not summed, and others.

    Returns
    -------
    The letters of the result, and the result; None if loops do it as well.
    """
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, operands, strict=True):
        for letter, size in zip(term, shape_of(operand), strict=True):
            if sizes.setdefault(letter, size) != size:
                return None  # an axis of length 1 is broadcast, or there is an error
        if len({*term}) < len(term):
            return None
    if math.prod(sizes.values()) <= _FEW:
        return None
    x_term, x = _summed(terms[0], operands[0], needed + terms[1])
    y_term, y = _summed(terms[1], operands[1], needed + terms[0])
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
    alone = tuple(k for k, c in enumerate(term) if c not in needed)
    if not alone:
        return term, x
    return "".join(c for k, c in enumerate(term) if k not in alone), reduction.sum(x, axis=alone)


@functools.lru_cache(maxsize=256)
def _explicit(subscripts: str, ranks: tuple[int, ...]) -> str:
    """Return subscripts for operands of some ranks with an output, and without ellipses."""
    text = subscripts.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"einsum: {len(terms)} terms in {subscripts!r} for {len(ranks)} operands")
    free = [c for c in LETTERS if c not in text]
    longest = 0
    for k, (term, own) in enumerate(zip(terms, ranks, strict=True)):
        if "..." in term:
            count = own - (len(term) - 3)
            longest = max(longest, count)
            terms[k] = term.replace("...", "".join(free[:count][::-1]))
        if len(terms[k]) != own:
            raise ValueError(
                f"einsum: term {term!r} has {len(terms[k])} indices for an operand of "
                f"{own} dimensions"
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
