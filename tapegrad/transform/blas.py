"""Products of floats by BLAS: new arrays, or added to others without an array in between.

Factors may be transposed, or parts of larger matrices: BLAS takes the distance between rows or
columns. The functions are those through which numba's ``np.dot`` calls the BLAS of SciPy. That
takes up to half a second to compile. Here the functions that call BLAS see addresses, extents, and
distances in memory: they are compiled once, for arrays of all layouts.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import linalg

from tapegrad.transform.cache.machine_code import inlined, jit
from tapegrad.transform.tape_memory.large_arrays import empty, zeros

_FEW = 128  # multiplications that loops do in less time than a call
_SIZE = 8  # bytes of a float
_MOST = (1 << 31) - 1  # the largest integer that BLAS takes

_INT, _CHAR, _WORD = ir.IntType(32), ir.IntType(8), ir.IntType(64)
_POINTER = _CHAR.as_pointer()


def _function_of_blas(name: str, pattern: str):
    """Return an intrinsic that calls a function of BLAS for float64; its result is 0.

    Without SciPy it is -1, and nothing is called.

    Parameters
    ----------
    name
        The name that numba gives it.
    pattern
        Its parameters after the kind of numbers: ``t`` (whether a factor is transposed), ``i`` (an
        integer), ``p`` (an address), ``1`` (the factors of the product and of what it is added to).
    """
    kinds = {"t": _CHAR, "i": _WORD, "p": _POINTER, "1": _POINTER}
    taken = [letter for letter in pattern if letter != "1"]

    @intrinsic
    def call(typingctx, given):
        has_blas = _has_blas()

        def codegen(context, builder, signature, args):
            if not has_blas:
                return ir.Constant(_WORD, -1)
            values = iter(cgutils.unpack_tuple(builder, args[0], len(taken)))
            one = cgutils.alloca_once_value(builder, ir.Constant(ir.DoubleType(), 1.0))
            found = [ir.Constant(_CHAR, ord("d"))]
            for letter in pattern:
                if letter == "1":
                    found.append(builder.bitcast(one, _POINTER))
                elif letter == "p":
                    found.append(builder.inttoptr(next(values), _POINTER))
                elif letter == "t":
                    letters = (ir.Constant(_CHAR, ord(text)) for text in "tn")
                    is_turned = builder.trunc(next(values), ir.IntType(1))
                    found.append(builder.select(is_turned, *letters))
                else:
                    found.append(next(values))
            kind = ir.FunctionType(_INT, [_CHAR, *(kinds[letter] for letter in pattern)])
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            return builder.sext(builder.call(function, found), _WORD)

        return types.int64(types.UniTuple(types.int64, len(taken))), codegen

    return call


def _has_blas() -> bool:
    """Whether numba finds the BLAS of SciPy."""
    try:
        linalg.ensure_blas()
    except ImportError:  # SciPy is not installed
        return False
    return True


_gemm = _function_of_blas("numba_xxgemm", "ttiii1pipi1pi")
_gemv = _function_of_blas("numba_xxgemv", "tii1pip1p")


def _placer(is_turned: bool):
    """Return an intrinsic that tells where an array, or the transposes of its matrices, lies.

    Its result is the address, the extents, and the distances in memory along the axes.
    """

    @intrinsic
    def place(typingctx, x):
        def codegen(context, builder, signature, args):
            array = context.make_array(signature.args[0])(context, builder, args[0])
            found = [builder.ptrtoint(array.data, _WORD)]
            for values in (array.shape, array.strides):
                parts = cgutils.unpack_tuple(builder, values)
                found += [*parts[:-2], *reversed(parts[-2:])] if is_turned else parts
            return context.make_tuple(builder, signature.return_type, found)

        return types.UniTuple(types.int64, 1 + 2 * x.ndim)(x), codegen

    return place


_place, _turned = _placer(False), _placer(True)


@intrinsic
def _read(typingctx, address, k):
    """Return a float, which is element k of those that begin at an address."""

    def codegen(context, builder, signature, args):
        return builder.load(_element(builder, args))

    return types.float64(types.int64, types.int64), codegen


@intrinsic
def _write(typingctx, address, k, value):
    """Write a float, which is element k of those that begin at an address."""

    def codegen(context, builder, signature, args):
        builder.store(args[2], _element(builder, args))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.float64), codegen


def _element(builder, args):
    first = builder.inttoptr(args[0], ir.DoubleType().as_pointer())
    return builder.gep(first, [args[1]])


@inlined
def _rows_step(rows, columns, down, right):
    """Return how many floats there are from row to row; 0 if BLAS does not take such a matrix."""
    step = columns if rows == 1 else down // _SIZE
    is_in_pieces = right != _SIZE and columns > 1
    if is_in_pieces or step < columns or rows > _MOST or step > _MOST:
        return 0
    return step if rows == 1 or down % _SIZE == 0 else 0


@jit
def _as_factor(rows, columns, down, right):
    """Return whether a matrix is transposed in memory, and the step of BLAS: 0 if it has none."""
    step = _rows_step(rows, columns, down, right)
    if step:
        return 0, step
    return 1, _rows_step(columns, rows, right, down)


# -- in memory -------------------------------------------------------------------------------------


@jit
def _by_blas(out, x, y):
    """Add the product of two matrices; return whether that was possible."""
    to, rows, columns, out_down, out_right = out
    left, _, terms, left_down, left_right = x
    right, _, _, right_down, right_right = y
    out_turned, out_step = _as_factor(rows, columns, out_down, out_right)
    left_turned, left_step = _as_factor(rows, terms, left_down, left_right)
    right_turned, right_step = _as_factor(terms, columns, right_down, right_right)
    if out_step == 0 or left_step == 0 or right_step == 0:
        return False
    # BLAS counts along columns first: of what lies in rows it sees the transpose
    if out_turned:
        turned, first, second = (
            (1 - left_turned, 1 - right_turned),
            (left, left_step),
            (right, right_step),
        )
        extents = rows, columns, terms
    else:
        turned, first, second = (right_turned, left_turned), (right, right_step), (left, left_step)
        extents = columns, rows, terms
    return _gemm(turned + extents + first + second + (to, out_step)) == 0


@jit
def _in_rows(x):
    """Return a copy of a matrix, whose rows are contiguous."""
    address, rows, columns, down, right = x
    copy = empty((rows, columns))
    to = _place(copy)[0]
    for i in range(rows):
        for j in range(columns):
            _write(to, i * columns + j, _read(address + i * down + j * right, 0))
    return copy


@jit
def _assign(out, x):
    """Copy a matrix whose rows are contiguous."""
    to, rows, columns, down, right = out
    address = _place(x)[0]
    for i in range(rows):
        for j in range(columns):
            _write(to + i * down + j * right, 0, _read(address, i * columns + j))


@inlined
def _add_by_blas(out, x, y):
    """Add the product of two matrices, which live longer than their places are used."""
    return _by_blas(_place(out), _place(x), _place(y))


@jit
def _by_blas_of_copies(out, x, y):
    """Add the product of two matrices that BLAS does not take; return whether that was possible."""
    copy = _in_rows(out)
    is_added = _add_by_blas(copy, _in_rows(x), _in_rows(y))
    if is_added:
        _assign(out, copy)
    return is_added


@inlined
def _are_few(out, x):
    """Whether loops do the multiplications in less time than a call."""
    return out[1] * out[2] * x[2] <= _FEW


@jit
def _in_loops(out, x, y):
    """Add the product of two matrices."""
    to, rows, columns, out_down, out_right = out
    left, _, terms, left_down, left_right = x
    right, _, _, right_down, right_right = y
    are_rows = out_right == _SIZE and right_right == _SIZE
    for i in range(rows):
        row = to + i * out_down
        for k in range(terms):
            factor = _read(left + i * left_down + k * left_right, 0)
            other = right + k * right_down
            if are_rows:  # LLVM makes vectors of it
                for j in range(columns):
                    _write(row, j, _read(row, j) + factor * _read(other, j))
            else:
                for j in range(columns):
                    place, term = row + j * out_right, _read(other + j * right_right, 0)
                    _write(place, 0, _read(place, 0) + factor * term)


@jit
def _multiply(out, x, y):
    """Add the product of two matrices, by BLAS if that is possible."""
    if not _by_blas(out, x, y):
        if _are_few(out, x) or not _by_blas_of_copies(out, x, y):
            _in_loops(out, x, y)


@jit
def _add(out, x, y):
    """Add the product of two matrices, in loops if there are few multiplications."""
    if _are_few(out, x):
        _in_loops(out, x, y)
    else:
        _multiply(out, x, y)


@inlined
def _matrix(stack, k):
    """Return the place of a matrix of a stack."""
    address, _, rows, columns, step, down, right = stack
    return address + k * step, rows, columns, down, right


@jit
def _add_each(out, x, y):
    """Add the products of the matrices of two stacks."""
    for k in range(out[1]):
        _add(_matrix(out, k), _matrix(x, k), _matrix(y, k))


@jit
def _vector_by_blas(out, x, y):
    """Add the product of a matrix and a vector; return whether that was possible."""
    to, _, out_step = out
    vector, terms, y_step = y
    matrix, rows, columns, down, right = x
    is_turned, step = _as_factor(rows, terms, down, right)
    if step == 0 or out_step != _SIZE or y_step != _SIZE:
        return False
    if is_turned:
        return _gemv((0, rows, columns, matrix, step, vector, to)) == 0
    return _gemv((1, columns, rows, matrix, step, vector, to)) == 0


@jit
def _vector_in_loops(out, x, y):
    """Add the product of a matrix and a vector."""
    to, _, out_step = out
    vector, _, y_step = y
    matrix, rows, columns, down, right = x
    for i in range(rows):
        total = _read(to + i * out_step, 0)
        for k in range(columns):
            factor = _read(matrix + i * down + k * right, 0)
            total += factor * _read(vector + k * y_step, 0)
        _write(to + i * out_step, 0, total)


@jit
def _in_one_run(x):
    """Return a copy of a vector, which is contiguous."""
    address, size, step = x
    copy = empty((size,))
    to = _place(copy)[0]
    for k in range(size):
        _write(to, k, _read(address + k * step, 0))
    return copy


@inlined
def _add_vector_by_blas(out, x, y):
    """Add the product of a matrix and a vector to another, which live longer than their places."""
    return _vector_by_blas(_place(out), x, _place(y))


@jit
def _vector_by_blas_of_copies(out, x, y):
    """Add the product with a vector that BLAS does not take; return whether that was possible."""
    copy = _in_one_run(out)
    is_added = _add_vector_by_blas(copy, x, _in_one_run(y))
    if is_added:
        to, size, step = out
        _assign((to, size, 1, step, _SIZE), copy)
    return is_added


@jit
def _multiply_vector(out, x, y):
    """Add the product of a matrix and a vector, by BLAS if that is possible."""
    if not _vector_by_blas(out, x, y):
        if x[1] * x[2] <= _FEW or not _vector_by_blas_of_copies(out, x, y):
            _vector_in_loops(out, x, y)


@jit
def _add_to_vector(out, x, y):
    """Add the product of a matrix and a vector, in loops if there are few multiplications."""
    if x[1] * x[2] <= _FEW:
        _vector_in_loops(out, x, y)
    else:
        _multiply_vector(out, x, y)


# -- of arrays -------------------------------------------------------------------------------------


@inlined
def add_product(out, x, y):
    """Add the product of two matrices of floats to a matrix."""
    _add(_place(out), _place(x), _place(y))


@inlined
def add_matrix_vector(out, x, y):
    """Add the product of a matrix and a vector of floats to a vector."""
    _add_to_vector(_place(out), _place(x), _place(y))


@inlined
def add_products(out, x, y):
    """Add the products of the matrices of two stacks of floats."""
    _add_each(_place(out), _place(x), _place(y))


@inlined
def add_products_nt(out, x, y):
    """Add the products with the transposes of the second matrices."""
    _add_each(_place(out), _place(x), _turned(y))


@inlined
def add_products_tn(out, x, y):
    """Add the products of the transposes of the first matrices."""
    _add_each(_place(out), _turned(x), _place(y))


# BLAS computes short products, too: results are those of numba's function to the last bit, unless
# a matrix has one row or column, where the last digits may differ


@inlined
def dot_22(x, y):
    """Return the product of two matrices of floats."""
    if x.shape[1] != y.shape[0]:
        raise ValueError("incompatible array sizes for np.dot(a, b) (matrix * matrix)")
    out = zeros((x.shape[0], y.shape[1]))
    _multiply(_place(out), _place(x), _place(y))
    return out


@inlined
def dot_21(x, y):
    """Return the product of a matrix and a vector of floats."""
    if x.shape[1] != y.size:
        raise ValueError("incompatible array sizes for np.dot(a, b) (matrix * vector)")
    out = zeros((x.shape[0],))
    _multiply_vector(_place(out), _place(x), _place(y))
    return out


@inlined
def dot_12(x, y):
    """Return the product of a vector and a matrix of floats."""
    if x.size != y.shape[0]:
        raise ValueError("incompatible array sizes for np.dot(a, b) (vector * matrix)")
    out = zeros((y.shape[1],))
    _multiply_vector(_place(out), _turned(y), _place(x))
    return out
