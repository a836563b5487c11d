"""What programs with complex numbers share: values, leaves, losses, gradients of both orders."""

Z = [1.0 + 2.0j, 0.5 - 1.0j, -0.75 + 0.25j]
W = [0.5 + 0.5j, -1.0 + 2.0j, 1.5 - 0.5j]
M = [[1.0 + 2.0j, 0.5 - 1.0j], [-0.75 + 0.25j, 2.0 - 0.5j]]


def leaf(lib, data=Z, dtype="complex128"):
    return lib.tensor(data, True, dtype)


def constant(lib, data=W):
    return lib.tensor(data, False, "complex128")


def power_of(z):
    """A real loss that every part of a result counts in."""
    if "complex" not in str(z.dtype):
        return (z * z * z).sum()
    return (abs(z) ** 2 + 2 * z.real - 0.5 * z.imag).sum()


def value(lib, t):
    """A gradient; PyTorch may have left a conjugation for later."""
    return t * 1


def both(lib, f, *inputs):
    """The result and gradients of a function of leaves, also by a recorded backward pass."""
    out = f(*inputs)
    loss = power_of(out)
    first = lib.grad(loss, inputs, retain_graph=True)
    again = lib.grad(loss, inputs, create_graph=True)
    return [value(lib, t) for t in (out, *first, *again)]


def second(lib, f, *inputs):
    """Gradients of a function of the gradients."""
    first = lib.grad(power_of(f(*inputs)), inputs, create_graph=True)
    total = sum(((abs(g) ** 2).sum() + (g * (2 - 1j)).real.sum() for g in first), 0.0)
    return [value(lib, g) for g in lib.grad(total, inputs)]
