"""Programs about in-place work and versions, on both libraries."""

import pytest
from libraries import Programs, leaf, square

pytest.importorskip("torch")
program = Programs()


# -- versions -------------------------------------------------------------------------------------


@program
def versions(lib):
    x = leaf(lib)
    y = x * 1
    found = [y._version]
    y += 1
    found.append(y._version)
    y[0] = 5.0
    found.append(y._version)
    view = y[1:]
    view.mul_(2)
    found += [y._version, view._version]
    d = y.detach()
    d.zero_()
    found += [y._version, d._version]
    y.data.add_(1)
    found += [y._version]
    with lib.no_grad():
        x.add_(1)
    return [*found, x._version, (y + 1)._version, y.clone()._version]


@program
def versions_of_views_of_detached(lib):
    y = leaf(lib) * 1
    d = y.detach()
    d[1:].add_(1)
    y[:2].detach().add_(1)
    return y, d, y._version, d._version, d[0:1]._version, d._is_view(), d._base is None


@program
def data_has_its_own_counter(lib):
    x = leaf(lib)
    d = x.data
    d += 1
    view = x.data[1:]
    view.add_(1)
    return x, x._version, d._version, view._version


@program
def data_of_views(lib):
    y = leaf(lib) * 1
    view = y[1:]
    view.data.zero_()
    return y, y._version, view._version


@program
def data_under_a_saved_value(lib):
    x = leaf(lib)
    y = x.exp()
    z = y.sum()
    y.data.mul_(2)
    z.backward()
    return x.grad


@program
def data_assigned(lib):
    x = leaf(lib)
    x.data = lib.tensor([7.0, 8.0])
    (x * x).sum().backward()
    return x, x.grad, x.is_leaf, x.requires_grad, x._version


@program
def incremented(lib):
    y = leaf(lib) * 1
    lib.graph.increment_version(y)
    first = y._version
    lib.graph.increment_version([y, y[:1]])
    return first, y._version, y.detach()._version


# -- detection ------------------------------------------------------------------------------------


@program(raises="which is output 0 of Exp")
def modified_names_the_op(lib):
    y = leaf(lib).exp()
    z = y.sum()
    y += 1
    z.backward()


@program(raises="is at version 2; expected version 0 instead. Hint: enable anomaly detection")
def modified_names_the_versions(lib):
    y = leaf(lib).exp()
    z = y.sum()
    y += 1
    y += 1
    z.backward()


@program(raises="is at version 3; expected version 1 instead")
def modified_counts_from_the_saving(lib):
    y = leaf(lib) * 1
    y += 1
    z = y.sin().sum()
    y[0] = 1.0
    y.zero_()
    z.backward()


@program(raises="[float64 [3]] is at version 1; expected version 0 instead")
def modified_leaf(lib):
    x = leaf(lib)
    z = (x * x).sum()
    with lib.no_grad():
        x += 1
    z.backward()


@program(raises="[float64 [3]] is at version 1; expected version 0 instead")
def modified_passive_operand(lib):
    x, w = leaf(lib), lib.tensor([1.0, 2.0, 3.0])
    z = (x * w).sum()
    w += 1
    z.backward()


@program(raises="modified by an inplace operation")
def modified_under_create_graph(lib):
    x = leaf(lib)
    y = x.exp()
    z = y.sum()
    y.detach().zero_()
    lib.grad(z, x, create_graph=True)


@program(raises="modified by an inplace operation")
def modified_through_a_view_of_detached(lib):
    y = leaf(lib).exp()
    z = y.sum()
    y.detach()[1:].zero_()
    z.backward()


@program(raises="modified by an inplace operation")
def modified_in_another_part(lib):
    y = leaf(lib) * 1
    z = (y[1:] * y[1:]).sum()
    y[0] = 9.0
    z.backward()


@program(raises="modified by an inplace operation")
def modified_in_a_hook(lib):
    y = leaf(lib).exp()

    def hook(g):
        y.detach().zero_()

    y.register_hook(hook)
    y.sum().backward()


@program
def modified_where_not_saved(lib):
    x = leaf(lib)
    y = x * 1
    z = y + 3
    w = y.exp()
    y.zero_()
    (z + w).sum().backward()
    return x.grad


@program
def modified_off_the_way(lib):
    x, w = leaf(lib), leaf(lib)
    a, b = x.exp(), w.exp()
    total = a.sum() + b.sum()
    b.zero_()
    return lib.grad(total, x)


@program
def modified_before_it_is_saved(lib):
    x = leaf(lib)
    y = x * 1
    y += 1
    y[0] = 3.0
    (y * y).sum().backward()
    return x.grad


# -- leaves ---------------------------------------------------------------------------------------


@program(raises="a leaf Variable that requires grad is being used in an in-place operation.")
def write_to_a_leaf(lib):
    x = leaf(lib)
    x += 1


@program(raises="a leaf Variable that requires grad is being used in an in-place operation.")
def zero_a_leaf(lib):
    leaf(lib).zero_()


@program(raises="a view of a leaf Variable that requires grad is being used in an in-place")
def write_to_a_view_of_a_leaf(lib):
    y = leaf(lib)[0:1]
    y += 1


@program(raises="leaf Variable that requires grad is being used in an in-place operation.")
def assign_to_a_leaf(lib):
    x = leaf(lib)
    x[0:1][0:1].fill_(2.0)


@program(raises="a view of a leaf Variable that requires grad is being used in an in-place")
def view_of_what_became_a_leaf(lib):
    base = lib.zeros(2)
    view = base[:1]
    base.requires_grad_()
    view += 1


@program(raises="a leaf Variable that requires grad is being used in an in-place operation.")
def detached_leaf(lib):
    d = (leaf(lib) * 1).detach().requires_grad_()
    d *= 2


@program
def leaf_under_no_grad(lib):
    x, w = leaf(lib), leaf(lib)
    with lib.no_grad():
        x *= w
        x[0:1] += 1
        x[1] = 7.0
    (x * 2).sum().backward()
    return x, x.is_leaf, x.grad, w.grad is None, x.grad_fn is None


@program
def view_that_is_a_leaf(lib):
    base = lib.zeros(2)
    view = base[:1].requires_grad_()
    found = [view.is_leaf, base.requires_grad]
    (view * 2).sum().backward()
    found.append(view.grad)
    base.mul_(lib.tensor([1.0, 2.0], True))
    return [*found, view.is_leaf, view.requires_grad]


@program
def base_that_became_a_leaf(lib):
    base = lib.zeros(2)
    view = base[:1]
    base.requires_grad_()
    return view.requires_grad


# -- values ---------------------------------------------------------------------------------------


@program
def assignments(lib):
    x, v = leaf(lib), lib.tensor([5.0, 6.0], True)
    y = x * 1
    y[1:] = v
    y[lib.index(0, 2)] *= 2
    y[y > 9] = 1.0
    (y * y).sum().backward()
    return y, x.grad, v.grad


@program
def assigned_and_broadcast(lib):
    x, s = square(lib), lib.tensor(3.0, True)
    y = x * 1
    y[0] = s
    y[:, 1] = s * lib.tensor([1.0])
    (y * lib.tensor([[1.0, 10.0], [100.0, 1000.0]])).sum().backward()
    return y, x.grad, s.grad


@program
def one_item_from_another(lib):
    x = leaf(lib)
    y = x * 1
    y[0] = y[2]
    y[1] += y[0]
    (y * lib.tensor([1.0, 10.0, 100.0])).sum().backward()
    return y, x.grad


@program
def underscore_methods(lib):
    x = lib.tensor([0.5, 1.5], True)
    y = x * 1
    y.add_(1).mul_(2).sin_().pow_(2).neg_().div_(3).sub_(x).exp_()
    z = lib.zeros(2).copy_(y)
    y.sum().backward()
    return y, z, x.grad


@program
def underscore_methods_that_save(lib):
    x = lib.tensor([-0.5, 1.5], True)
    y = x * 1
    y.abs_().log_().square_().cos_().reciprocal_()
    y.sum().backward()
    return y, x.grad


@program
def constants_keep_what_requires_grad(lib):
    x = leaf(lib)
    found = []
    for write in (lambda t: t.zero_(), lambda t: t.fill_(2), lambda t: t.copy_(lib.ones(3))):
        y = x * 3
        write(y)
        found += [y, y.requires_grad, y.is_leaf]
    y = x * 3
    y[:] = 1.0
    return [*found, y, y.requires_grad]


@program
def copies_convert(lib):
    x = lib.tensor([1.0, 2.0], True, dtype="float32")
    t = lib.zeros(2)
    t.copy_(x)
    (t * lib.tensor([1.0, 10.0])).sum().backward()
    return t, x.grad


@program
def copy_of_itself(lib):
    x = leaf(lib)
    y = x * 2
    y.copy_(y)
    y.sum().backward()
    return y, x.grad


@program
def passive_becomes_differentiable(lib):
    x, t = leaf(lib), lib.ones(3)
    t += x
    t *= 2
    t.sum().backward()
    return t, t.is_leaf, x.grad


@program
def second_derivative(lib):
    x = lib.tensor([0.5, 1.5], True)
    y = x * x
    z = y * 1
    z += x
    z[0] = x[1] ** 3
    (g,) = lib.grad((z * y).sum(), x, create_graph=True)
    return g, lib.grad(g.sum(), x)


@program(raises="output with shape [2] doesn't match the broadcast shape [3, 2]")
def growing_in_place(lib):
    y = lib.zeros(2)
    y += lib.ones(3, 2)


@program(raises="can't be cast to the desired output type")
def lossy_cast(lib):
    y = lib.tensor([1, 2], dtype="int64")
    y *= 1.5


# -- what belongs to a tensor ---------------------------------------------------------------------


@program
def hooks_of_versions(lib):
    x = leaf(lib)
    y = x * 2
    seen = []
    y.register_hook(lambda g: seen.append(("old", g.tolist())))
    y.retain_grad()
    y *= 3
    y.register_hook(lambda g: seen.append(("new", g.tolist())))
    y.sum().backward()
    return seen, y.grad, x.grad


@program
def hooks_of_base_and_view(lib):
    x = leaf(lib, 2)
    y = x * 2
    seen = []
    y.register_hook(lambda g: seen.append(("old base", g.tolist())))
    view = y[:1]
    view.register_hook(lambda g: seen.append(("old view", g.tolist())))
    view *= 3
    y.register_hook(lambda g: seen.append(("base", g.tolist())))
    view.register_hook(lambda g: seen.append(("view", g.tolist())))
    (y.sum() + 10 * view.sum()).backward()
    return seen, x.grad


@program
def hook_of_the_old_version_removed(lib):
    x = leaf(lib)
    y = x * 2
    handle = y.register_hook(lambda g: g * 10)
    y *= 3
    handle.remove()
    y.sum().backward()
    return x.grad


@program
def retained_through_a_view(lib):
    x = leaf(lib, 2)
    y = x * 2
    y.retain_grad()
    view = y[:1]
    view *= 3
    y.sum().backward()
    return y.grad, x.grad, y.retains_grad, view.retains_grad


@program
def retained_of_a_view(lib):
    x = leaf(lib, 2)
    y = x * 2
    view = y[:1]
    view.retain_grad()
    y *= 3
    view *= 2
    (view * 5).sum().backward()
    return view.grad, x.grad


@program
def detached_in_place(lib):
    x = leaf(lib)
    y = x * 2
    before = y + 1
    same = y.detach_() is y
    (before.sum()).backward()
    return same, y.requires_grad, y.is_leaf, y.grad_fn is None, y._version, x.grad


@program(raises="Can't detach views in-place. Use detach() instead")
def detached_view(lib):
    (leaf(lib) * 1)[:1].detach_()


@program(raises="Can't detach views in-place. Use detach() instead")
def detached_passive_view(lib):
    lib.zeros(2)[:1].detach_()


@program
def detached_base_with_a_view(lib):
    x = leaf(lib)
    y = x * 2
    view = y[:1]
    y.detach_()
    return y.requires_grad, view.requires_grad, lib.grad(view.sum(), x)


@program
def history_into_a_detached_tensor(lib):
    x, w = leaf(lib), leaf(lib)
    y = x * 1
    d = y.detach()
    d += w
    return y, d, lib.grad(d.sum() + (10 * y).sum(), [w, x])


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
    assert name in program
