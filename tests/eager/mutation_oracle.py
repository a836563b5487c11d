"""What tests of in-place work compare with: the same work on plain arrays, and the texts."""

import numpy as np
from leaves import leaf

LEAF = "leaf Variable that requires grad is being used in an in-place operation"
VIEW_OF_LEAF = "a view of a leaf Variable that requires grad is being used in an in-place operation"
MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)
MULTIPLE = "is the output of a function that returns multiple views"
NO_GRAD_VIEW = "A view was created in no_grad mode and is being modified inplace with grad mode"
ONE_LOCATION = "refers to a single memory location|refer to a single memory location|read-only"


def matrix():
    return leaf(np.arange(1.0, 7.0).reshape(2, 3))


def numeric_grad(f, at, eps=1e-6):
    """Central differences of a function from an array to a number."""
    found = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[index] = eps
        found[index] = (f(at + step) - f(at - step)) / (2 * eps)
    return found


class Store:
    """Memory without mutation: every write makes new arrays.

    Numbers are complex: the imaginary part carries derivatives (times `STEP`) by every element of
    the leaves, along one more axis at the end. Real and imaginary part are in separate places, as
    `detach()` shares the one and not the other.
    """

    STEP = 1e-30

    def __init__(self, directions):
        self.directions = directions
        self.real, self.imag, self.leaves = [], [], set()

    def new(self, value):
        """Show a computed complex value."""
        shape = value.shape[:-1]
        self.real.append(value[..., 0].real.reshape(-1))
        self.imag.append(value.imag.reshape(-1, self.directions))
        index = np.arange(self.real[-1].size).reshape(shape)
        return Shown(self, len(self.real) - 1, len(self.imag) - 1, index)

    def constant(self, array):
        return self.new(np.repeat(array[..., None], self.directions, -1) + 0j)

    def leaf(self, array, first):
        """Show a leaf whose elements are the directions from `first` on."""
        shown = self.constant(array)
        imag = np.zeros((array.size, self.directions))
        imag[np.arange(array.size), first + np.arange(array.size)] = self.STEP
        self.imag[shown.history] = imag
        self.leaves.add(shown.history)
        return shown


class Shown:
    """What a tensor is: a place for values, a place for derivatives, and positions in both."""

    def __init__(self, store, memory, history, index):
        self.store, self.memory, self.history, self.index = store, memory, history, index
        self.turns = 0  # how often it became a view of itself

    @property
    def shape(self):
        return self.index.shape

    @property
    def ndim(self):
        return self.index.ndim

    @property
    def real(self):
        return self.store.real[self.memory][self.index]

    @property
    def value(self):
        return self.real[..., None] + 1j * self.store.imag[self.history][self.index]

    @property
    def is_leaf_memory(self):
        return self.history in self.store.leaves

    def view(self, function):
        return Shown(self.store, self.memory, self.history, function(self.index))

    def detach(self):
        self.store.imag.append(np.zeros_like(self.store.imag[self.history]))
        return Shown(self.store, self.memory, len(self.store.imag) - 1, self.index)

    def write(self, value, recorded, index=...):
        """Put a complex value at an index; without recording derivatives stay."""
        store, positions = self.store, self.index[index]
        value = np.broadcast_to(value, (*positions.shape, store.directions))
        real = store.real[self.memory].copy()
        real[positions] = value[..., 0].real
        store.real[self.memory] = real
        if recorded:
            imag = store.imag[self.history].copy()
            imag[positions] = value.imag
            store.imag[self.history] = imag
