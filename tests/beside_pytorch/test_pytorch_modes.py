"""Recording and inference mode do the same on both libraries."""

import pytest
from libraries import Programs

pytest.importorskip("torch")
program = Programs()


def state(lib):
    return lib.is_inference_mode_enabled(), lib.is_grad_enabled()


def made_in_inference_mode(lib, *numbers):
    with lib.inference_mode():
        return lib.tensor(list(numbers) or [1.0, 2.0])


# -- recording ------------------------------------------------------------------------------------


@program
def nested_contexts(lib):
    seen = [state(lib)]
    with lib.no_grad():
        seen.append(state(lib))
        with lib.enable_grad():
            seen.append(state(lib))
            with lib.inference_mode():
                seen.append(state(lib))
                with lib.enable_grad():
                    seen.append((state(lib), (lib.tensor([1.0], True) * 2).requires_grad))
                with lib.inference_mode(False):
                    seen.append((state(lib), (lib.tensor([1.0], True) * 2).requires_grad))
                with lib.no_grad():
                    seen.append(state(lib))
            seen.append(state(lib))
        with lib.set_grad_enabled(True):
            seen.append(state(lib))
        with lib.inference_mode(False):
            seen.append(state(lib))
        seen.append(state(lib))
    return [*seen, state(lib)]


@program
def decorators(lib):
    modes = [lib.no_grad(), lib.enable_grad(), lib.set_grad_enabled(False), lib.inference_mode()]
    lib.set_grad_enabled(True)
    functions = [mode(lambda: state(lib)) for mode in modes]
    functions += [mode(lambda: state(lib)) for mode in (lib.no_grad, lib.inference_mode)]
    functions += [lib.inference_mode(False)(lambda: state(lib))]
    found = [f() for f in functions]
    with lib.no_grad():
        found += [f() for f in functions]
    return found, state(lib)


@program
def set_grad_enabled_at_once(lib):
    seen = []
    context = lib.set_grad_enabled(False)
    seen.append(lib.is_grad_enabled())
    with context:
        seen.append(lib.is_grad_enabled())
    seen.append(lib.is_grad_enabled())
    decorate = lib.set_grad_enabled(False)
    seen.append(lib.is_grad_enabled())
    f = decorate(lib.is_grad_enabled)
    seen.append(lib.is_grad_enabled())
    return [*seen, f(), lib.is_grad_enabled()]


@program
def contexts_entered_again_inside_themselves(lib):
    context, seen = lib.no_grad(), []
    with context:
        with lib.enable_grad():
            seen.append(lib.is_grad_enabled())
        seen.append(lib.is_grad_enabled())
    with context:
        seen.append(lib.is_grad_enabled())
    return [*seen, lib.is_grad_enabled()]


@program
def generators(lib):
    seen = []

    @lib.inference_mode()
    def g():
        try:
            got = yield state(lib)
            seen.append((got, state(lib)))
            yield state(lib)
        except ValueError:
            yield state(lib)
        finally:
            seen.append(("end", state(lib)))
        return "value"

    a = g()
    seen += [next(a), state(lib), a.send("x"), a.throw(ValueError()), state(lib)]
    try:
        next(a)
    except StopIteration as stop:
        seen.append(stop.value)
    b = g()
    next(b)
    b.close()
    return seen


@program(warns="Decorating classes is deprecated and will be disabled in future versions.")
def decorated_classes(lib):
    @lib.no_grad()
    class A:
        def __init__(self):
            self.state = state(lib)

        def f(self):
            return state(lib)

    return A().state, A().f()


@program(warns="Decorating classes is deprecated and will be disabled in future versions.")
def classes_decorated_by_inference_mode(lib):
    @lib.inference_mode()
    class A:
        def __init__(self):
            self.state = state(lib)

    return A().state


@program(raises="must be bool")
def set_grad_enabled_to_a_string(lib):
    lib.set_grad_enabled("on")


# -- inference tensors ----------------------------------------------------------------------------


@program
def kinds_of_tensors(lib):
    x = lib.tensor([1.0, 2.0], True)
    with lib.inference_mode():
        made = [x * 2, lib.ones(2), lib.tensor([1.0], True), x[:1], x.detach()]
    t = made[0]
    made += [t[:1], t.detach(), t.data, t.clone(), t + 0, t.reshape(2, 1), lib.tensor([1.0])]
    return [(m.is_inference(), m.is_leaf) for m in made], t.requires_grad


@program
def inference_tensors_in_sums(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = x + made_in_inference_mode(lib)
    z = x * 1
    z.add_(made_in_inference_mode(lib))
    w = lib.zeros(2).copy_(made_in_inference_mode(lib))
    (y + z + w).sum().backward()
    return y, z, w, x.grad, [t.is_inference() for t in (y, z, w)]


@program(raises=True)
def inference_tensor_saved(lib):
    return lib.tensor([1.0, 2.0], True) * made_in_inference_mode(lib)


@program(raises=True)
def inference_tensor_saved_by_a_function(lib):
    def forward(ctx, x, t):
        ctx.save_for_backward(t)
        return x * 1

    f = lib.make(forward, lambda ctx, g: (g, None))
    f.apply(lib.tensor([1.0, 2.0], True), made_in_inference_mode(lib))


@program(raises=True)
def inference_tensor_written(lib):
    made_in_inference_mode(lib).add_(1)


@program(raises=True)
def inference_tensor_written_without_recording(lib):
    with lib.no_grad():
        made_in_inference_mode(lib).zero_()


@program(raises=True)
def inference_tensor_assigned_to(lib):
    made_in_inference_mode(lib)[0] = 5.0


@program(raises=True)
def inference_tensor_as_out(lib):
    lib.add(lib.ones(2), lib.ones(2), out=made_in_inference_mode(lib))


@program(raises=True)
def view_of_an_inference_tensor_written(lib):
    made_in_inference_mode(lib)[:1].mul_(2)


@program
def inference_tensor_written_inside(lib):
    t = made_in_inference_mode(lib)
    with lib.inference_mode():
        t.add_(1)
        t[0] = 7.0
        t[1:].mul_(2)
    return t


@program(raises=True)
def inference_tensor_shall_require_grad(lib):
    made_in_inference_mode(lib).requires_grad_()


@program(raises=True)
def inference_tensor_shall_require_grad_by_assignment(lib):
    made_in_inference_mode(lib).requires_grad = True


@program(raises=True)
def version_of_an_inference_tensor(lib):
    return made_in_inference_mode(lib)._version


@program
def clone_of_an_inference_tensor(lib):
    x = made_in_inference_mode(lib).clone().requires_grad_()
    y = x * 1
    y.mul_(3)
    y.exp().sum().backward()
    return x, x.grad, x.is_inference(), y._version


@program
def normal_tensors_written_inside(lib):
    x, c = lib.tensor([1.0, 2.0], True), lib.ones(2)
    y = x * 1
    with lib.inference_mode():
        y.mul_(3)
        x.mul_(2)
        c.add_(1)
    y.sum().backward()
    return y, x, c, x.grad, [t._version for t in (x, y, c)], [t.is_inference() for t in (x, y, c)]


@program(raises="is at version 1; expected version 0 instead.")
def saved_values_overwritten_inside(lib):
    y = lib.tensor([1.0, 2.0], True).exp()
    z = y.sum()
    with lib.inference_mode():
        y.zero_()
    z.backward()


@program(
    raises="A view was created in inference mode and is being modified inplace in normal mode."
)
def view_made_in_inference_mode(lib):
    y = lib.tensor([1.0, 2.0], True) * 1
    with lib.inference_mode():
        view = y[:1]
    view.add_(1)


@program
def backward_in_inference_mode(lib):
    x = lib.tensor([1.0, 2.0], True)
    y = (x * x).sum()
    with lib.inference_mode():
        y.backward()
    return x.grad, x.grad.is_inference()


@program(raises=True)
def nothing_to_differentiate(lib):
    with lib.inference_mode():
        (lib.tensor([1.0], True) * 2).backward()


@pytest.mark.parametrize("name", program)
def test_same(name):
    program.check(name)
