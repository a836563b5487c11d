"""Einstein summation beside NumPy's, in loops and as products of matrices."""

import numpy as np
import pytest
from agreement import agree, check, data
from declared import declared_in
from hypothesis import given, settings
from hypothesis import strategies as st
from leaves import leaf

import tapegrad as tg
from tapegrad.ops import contractions

EINSUMS = [
    ("i,i->", [(3,), (3,)]),
    ("i,i", [(3,), (3,)]),
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ij,jk->ki", [(2, 3), (3, 4)]),
    ("ji", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("ij->j", [(2, 3)]),
    ("ii->", [(3, 3)]),
    ("ii", [(3, 3)]),
    ("ii->i", [(3, 3)]),
    ("iij->j", [(3, 3, 2)]),
    ("iji->ij", [(3, 2, 3)]),
    ("iii->i", [(2, 2, 2)]),
    ("ii,ij->j", [(3, 3), (3, 2)]),
    ("ij,k->k", [(2, 3), (4,)]),
    ("i,j->ij", [(2,), (3,)]),
    ("ij,ij->ij", [(2, 3), (2, 3)]),
    ("bij,bjk->bik", [(2, 2, 3), (2, 3, 2)]),
    ("ij,jk,kl->il", [(2, 3), (3, 2), (2, 4)]),
    ("i,ij,j->", [(2,), (2, 3), (3,)]),
    ("i,i,i->i", [(2,), (2,), (2,)]),
    ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 2)]),
    ("...ij,jk", [(5, 2, 3), (3, 2)]),
    ("...i,i...->...", [(2, 3), (3, 2)]),
    ("i...->...", [(2, 3, 4)]),
    ("i...->i...", [(2,)]),
    ("...,...->...", [(2, 3), (3,)]),
    ("...,...", [(2, 3), (2, 1)]),
    ("...i,...i->...i", [(1, 3), (2, 3)]),
    ("ij,ij->ij", [(1, 3), (2, 3)]),
    ("ij,ij->", [(2, 1), (2, 3)]),
    (",->", [(), ()]),
    (",i->i", [(), (3,)]),
    ("->", [()]),
    (" i j , j k -> i k ", [(2, 3), (3, 2)]),
    ("Ab,bA->A", [(2, 3), (3, 2)]),
    ("ij,jk->ik", [(2, 0), (0, 3)]),
]


@pytest.fixture(params=["loops", "products"], autouse=True)
def _way(request, monkeypatch):
    """Small operands are contracted in loops; here in either way."""
    if request.param == "products":
        monkeypatch.setattr(contractions, "_FEW", 0)


def test_every_function_is_here():
    assert declared_in(contractions) == {"contract", "einsum"}


@pytest.mark.parametrize(("subscripts", "shapes"), EINSUMS)
def test_einsum(subscripts, shapes):
    arrays = [data(*shape, seed=k) for k, shape in enumerate(shapes)]
    agree(tg.einsum(subscripts, *arrays), np.einsum(subscripts, *arrays))
    agree(tg.einsum(subscripts, *arrays, optimize=True), np.einsum(subscripts, *arrays))
    check(lambda *v: tg.einsum(subscripts, *v), *arrays)


@st.composite
def einsums(draw):
    sizes = {c: draw(st.integers(1, 3)) for c in "abcd"}
    terms = draw(st.lists(st.text("abcd", max_size=3), min_size=1, max_size=3))
    used = sorted(set("".join(terms)))
    output = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
    shapes = [tuple(sizes[c] for c in term) for term in terms]
    return ",".join(terms) + "->" + "".join(output), shapes


@given(einsums())
@settings(max_examples=120, deadline=None)
def test_any_einsum(case):
    subscripts, shapes = case
    arrays = [data(*shape, seed=k) for k, shape in enumerate(shapes)]
    agree(tg.einsum(subscripts, *arrays), np.einsum(subscripts, *arrays))
    check(lambda *v: tg.einsum(subscripts, *v), *arrays)


def test_einsum_of_the_same_tensor_twice():
    check(lambda v: tg.einsum("ij,kj,jl->il", v, v, v), data(3, 3))


@pytest.mark.parametrize(
    ("subscripts", "shapes", "match"),
    [
        ("ij,jk->ik", [(2, 3)], "einsum"),
        ("ij->i", [(2, 3, 4)], "einsum.*ij"),
        ("ij,jk->ik", [(2, 3), (4, 2)], "dimension|shape|broadcast"),
        ("ij->k", [(2, 3)], "output|k"),
        ("ij->ii", [(2, 3)], "output|i"),
        ("i1->i", [(2, 3)], "subscript|1"),
    ],
)
def test_bad_einsum(subscripts, shapes, match):
    with pytest.raises(ValueError, match=match):
        tg.einsum(subscripts, *[tg.tensor(data(*s), requires_grad=True) for s in shapes])


WITH_LISTS = {
    "output": lambda x, y: (x, [0, 1], [1]),
    "no output": lambda x, y: (x, [1, 0]),
    "diagonal": lambda x, y: (x[:2, :2], [0, 0], []),
    "product": lambda x, y: (x, [0, 1], y, [1, 2], [2, 0]),
    "implicit": lambda x, y: (x, [5, 30], y, (30, 2)),
    "ellipsis": lambda x, y: (x, [..., 1], y, [1, 2], [..., 2]),
}


class TestListsOfAxes:
    """In place of a text, each operand may be followed by the numbers of its axes."""

    X, Y = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)

    @pytest.mark.parametrize("function", [tg.einsum, np.einsum])
    @pytest.mark.parametrize("name", WITH_LISTS)
    def test_values_and_gradients(self, name, function):
        x, y = leaf(self.X), leaf(self.Y)
        found = function(*WITH_LISTS[name](x, y))
        expected = np.einsum(*WITH_LISTS[name](self.X, self.Y))
        np.testing.assert_allclose(found.detach(), expected)
        assert found.requires_grad
        for transform in (tg.jit, lambda f: f):
            g = tg.grad(transform(lambda x: tg.sum(function(*WITH_LISTS[name](x, y.detach())))))
            assert g(self.X).shape == (2, 3)

    @pytest.mark.parametrize("axes", [["i"], 3, [60], X])
    def test_refused(self, axes):
        with pytest.raises(TypeError, match="list of the numbers of its axes follows each operand"):
            tg.einsum(leaf(self.X), axes)

    def test_no_axes(self):
        with pytest.raises(TypeError, match="expected subscripts such as 'ij,jk->ik'"):
            tg.einsum(leaf(self.X))


@pytest.mark.parametrize("text", ["ii->i", "ii->", "ij,ii->ij"])
def test_axes_of_one_letter_have_one_size(text):
    x = np.arange(6.0).reshape(2, 3)
    others = [x] if "," in text else []
    for operand in (x, tg.tensor(x), tg.tensor(x, requires_grad=True)):
        with pytest.raises(ValueError):
            tg.einsum(text, *others, operand)
    with pytest.raises(ValueError):
        tg.jit(lambda x: tg.einsum(text, *others, x))(x)
    with pytest.raises(ValueError):
        tg.vmap(lambda x: tg.einsum(text, *others, x))(x[None])
