"""Programs about in-place work on views and their bases, on both libraries."""

import pytest
from libraries import Programs, leaf, square

pytest.importorskip("torch")
program = Programs()


# -- views ----------------------------------------------------------------------------------------


@program
def writes_through_views(lib):
    x = square(lib)
    y = x * 1
    row, column = y[0], y[:, 1]
    row *= 3
    column += row
    y[1] = row.exp()
    (y * y + column).sum().backward()
    return y, row, column, x.grad


@program
def views_of_views(lib):
    x = square(lib)
    y = x * 1
    t = lib.transpose(y)
    part = t[1:]
    item = part.reshape(2)[1:]
    item *= 10
    y += 1
    (y.sum() + 2 * t.sum() + 3 * part.sum() + 4 * item.sum()).backward()
    return y, t, part, item, x.grad, item._base is y


@program
def passive_base(lib):
    x = leaf(lib, 2)
    base = lib.zeros(2, 2)
    other = base[:, 0]
    base[0] = x * 2
    return base, other, other._base is base, lib.grad((base * base).sum() + other.sum(), x)


@program
def base_that_has_gone(lib):
    x = leaf(lib)
    view = (x * 2)[1:]
    view *= 3
    view.sum().backward()
    return view, view._base, x.grad


@program
def attributes_of_views(lib):
    x = leaf(lib)
    y = x * 2
    view = y[:1]
    return [
        *(view._base is y, y._base is None, x[1:]._base is x, view._is_view(), y._is_view()),
        *(view.is_leaf, x[1:].is_leaf, view.detach()._is_view(), view.clone()._is_view()),
    ]


@program(raises="Output 0 of Split is a view and is being modified inplace. This view is the")
def first_of_several_views(lib):
    a, _ = lib.split(leaf(lib, 2) * 1, 2)
    a += 1


@program(raises="Output 1 of Split is a view and is being modified inplace. This view is the")
def second_of_several_views(lib):
    _, b = lib.split(leaf(lib, 2) * 1, 2)
    b += 1


@program
def view_of_one_of_several(lib):
    y = leaf(lib, 4) * 1
    a, _ = lib.split(y, 2)
    error = lib.attempt(lambda: a[:1].zero_())
    return "that returns multiple views" in str(error.error), y, y._version


@program
def several_views_under_no_grad(lib):
    y = leaf(lib, 4) * 1
    a, _ = lib.split(y, 2)
    with lib.no_grad():
        a += 1
    return y, a._version, y._version


@program
def several_views_of_a_passive_base(lib):
    base = lib.zeros(4)
    a, b = lib.split(base, 2)
    a += 1
    return base, b, base._version


@program(raises="A view was created in no_grad mode and is being modified inplace with grad mode")
def view_of_no_grad(lib):
    y = leaf(lib) * 1
    with lib.no_grad():
        v = y[:1]
    v += 1


@program(raises="A view was created in no_grad mode and is being modified inplace with grad mode")
def view_of_no_grad_of_a_leaf(lib):
    x = leaf(lib)
    with lib.no_grad():
        v = x[:1]
    v += 1


@program(raises="A view was created in no_grad mode and is being modified inplace with grad mode")
def view_of_no_grad_gets_a_history(lib):
    base = lib.zeros(2)
    with lib.no_grad():
        v = base[:1]
    v += lib.tensor([1.0], True)


@program
def view_of_no_grad_of_a_passive_base(lib):
    base = lib.zeros(2)
    with lib.no_grad():
        v = base[:1]
    v += 1
    return base, v


@program
def both_under_no_grad(lib):
    x = leaf(lib)
    y = x * 2
    with lib.no_grad():
        y[:1].zero_()
    y.sum().backward()
    return y, x.grad


@program
def history_under_no_grad(lib):
    x = leaf(lib)
    base = lib.zeros(3)
    view = base[:]
    with lib.no_grad():
        view += x
    return base, view.requires_grad, base.requires_grad


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
    assert name in program
