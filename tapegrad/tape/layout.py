"""The memory layouts that compiled code and Python agree on, in one place.

Three kinds: the fields of a tape record, the words of a sweep's state, and the few CPython and
NumPy struct offsets through which compiled code reads a list and an array header. The last are
public (``PyListObject``, ``PyArrayObject_fields``) but not promised forever, so they are proved
when this module is imported.
"""

from __future__ import annotations

import ctypes

import numpy as np

# -- a record of the tape -----------------------------------------------------------------------

RECORD = np.dtype(
    [
        ("slot", "<i8"),  # position on the tape's clock; also names the adjoint of the output
        ("op", "<u4"),  # row of the op table
        ("flags", "<u4"),  # FREED | PYTHON | NARY | SAVES
        ("aval", "<i8"),  # shape and dtype of the output, interned
        ("x", "<i8"),  # slot of the first input, 0 = passive; number of inputs if NARY
        ("y", "<i8"),  # slot of the second input; axes of a reduction as bits; reach if NARY
        ("owner", "<u8"),  # address of the list that keeps inputs' owners and saved arrays alive
    ]
)
RECORD_WORDS = RECORD.itemsize // 8
SEGMENT_BITS = 12
SEGMENT_ROWS = 1 << SEGMENT_BITS
LEAF_CLOCK = 1 << 40  # leaves have a clock of their own, above every op

# flags of a record
FREED = 1  # its saved values are gone
PYTHON = 2  # the sweep must stop here: a user's rule, or a hook
NARY = 4  # `x` counts inputs; their slots are an int64 array in the owner
SAVES = 8  # this record saves values (of other records, the op table says so)

# -- an owner: [segment, slot, aval, inputs' owners..., saved values...] -------------------------

OWN_SEGMENT, OWN_SLOT, OWN_AVAL, OWN_INPUTS = 0, 1, 2, 3

# -- the op table as compiled code sees it: OP_WORDS int64 words an op ----------------------------

OP_WORDS = 8
OP_KIND = 0
OP_INPUTS = 1  # inputs that have a slot, at most 2
OP_VALUES = 2  # four words: index in the owner of z, a0, a1, a2, or -1
OP_LAYOUT = 6  # index in the owner of the layout array of a view
OP_SAVES = 7  # 1 if it saves anything that a sweep without retain_graph sets free
KIND_PYTHON, KIND_MAP, KIND_REDUCE, KIND_FLAT, KIND_VIEW, KIND_CAST = range(6)

# -- the aval table: AVAL_WORDS int64 words an aval -----------------------------------------------

MAX_DIMS = 32
AVAL_DTYPE, AVAL_ITEM, AVAL_SIZE, AVAL_CLASS, AVAL_NDIM, AVAL_DIMS = range(6)
AVAL_WORDS = AVAL_DIMS + MAX_DIMS
AVAL_BYTES = 8 * AVAL_WORDS
DTYPE_F4, DTYPE_F8 = 0, 1

# -- a window: two words a row of one segment -----------------------------------------------------

# word 0: address of the adjoint; word 1: bits below, aval << 8, uses << 40
TOUCHED = 1  # has a contribution, or is about to
FRESH = 2  # the next contribution overwrites
NEEDED = 4  # leads to a requested input
REACHED = 8  # leads from a root
BORROWED = 16  # memory that others may see: copy before adding to it
FOREIGN = 32  # memory not of the arena: never recycled
CAPTURE = 64  # report the finished adjoint
AVAL_SHIFT, USE_SHIFT = 8, 40
WINDOW_BYTES = 16 * SEGMENT_ROWS

# -- the state of a sweep: int64 words ------------------------------------------------------------

(
    S_ADDRESS,  # address of this state
    S_EVENT,
    S_ARG0,
    S_ARG1,
    S_ARG2,
    S_FINISH,  # 1: Python has done the record under the cursor
    S_CURRENT,  # row of the segment table being swept, -1 between segments
    S_CURSOR,  # row of that segment
    S_PENDING,  # touched rows not yet swept
    S_NEED_MODE,  # 1: only what leads to requested inputs
    S_RETAIN,  # 1: saved values stay
    S_SEGMENTS,  # address of the segment table
    S_NSEGMENTS,
    S_LAST,  # offset in that table of the segment found last
    S_AVALS,
    S_OPS,
    S_KERNELS,
    S_BLOCKS,  # scratch for blocks of elements
    S_WALKS,  # scratch for strided walks
    S_EXTERNALS,  # addresses of swept owners that somebody else holds
    S_NEXTERNALS,
    S_EXTERNAL_CAPACITY,
    S_SAVED_SEEN,  # 1: a swept record had saved values
    S_NREACHED,
    S_NNEEDED,
    S_NONE,  # address of None
    S_BOOL,  # address of the bool dtype
    S_MUTATED,  # address of (buffer, position) pairs
    S_NMUTATED,
    S_BUMP,  # unused memory of the arena
    S_BUMP_END,
    S_HOOKED,  # slot whose hooks have run, so that the sweep goes on with it
    S_PARTIAL,  # 1: some records below the roots are not needed, and keep their values
) = range(33)
S_HEADERS = 33  # z, a0, a1, a2 of the current record: array headers (0: not read) ...
S_DATA = 37  # ... and their data
S_STEPS = 41  # ... and 1, or 0 where the operand is one number; then the same of g
S_HANDLERS = 46  # addresses by kind; the first two entries are HANDLER_*
S_FREE = 54  # heads of the arena's free lists, one a power of two from 64 bytes
FREE_CLASSES = 48
STATE_WORDS = S_FREE + FREE_CLASSES

HANDLER_STRIDED, HANDLER_CHECK = 0, 1  # KIND_FLAT, KIND_VIEW and KIND_CAST follow
NO_MASK = -1

# the segment table
SEG_WORDS = 8
SEG_BYTES = 8 * SEG_WORDS
SEG_NUMBER, SEG_ROWS, SEG_WINDOW, SEG_TOP, SEG_COUNT, SEG_LOW, SEG_HIGH, SEG_LEAF = range(SEG_WORDS)

(
    EVENT_DONE,
    EVENT_SEGMENT,  # ARG0: number of a segment that is not in the table
    EVENT_MEMORY,  # ARG0: bytes the arena lacks
    EVENT_ARRAY,  # ARG0: slot, ARG1: aval, ARG2: 1 to copy: its adjoint needs memory of Python's
    EVENT_PYTHON,  # ARG0: slot, ARG1: owner
    EVENT_CAPTURE,  # ARG0: slot
    EVENT_FREED,  # ARG0: slot, ARG1: op
    EVENT_MUTATED,  # ARG0: slot, ARG1: op, ARG2: position of the mutation
    EVENT_EXTERNALS,  # the list of externals is full
    EVENT_KERNEL,  # ARG0: op, ARG1: dtype, ARG2: input: not compiled yet
    EVENT_HANDLER,  # ARG0: handler not compiled yet
) = range(11)

KERNEL_INPUTS = 3  # kernels that an op has room for, per dtype
BLOCK_ELEMENTS = 1024
BLOCKS = 7
WALK_WORDS = 4 + 3 * MAX_DIMS
WALKS = 6

# -- CPython and NumPy structs --------------------------------------------------------------------

OBJECT_REFCOUNT = 0
LIST_ITEMS = 24
ARRAY_DATA, ARRAY_NDIM, ARRAY_DIMS, ARRAY_STRIDES, ARRAY_BASE, ARRAY_DTYPE = 16, 24, 32, 40, 48, 56


class LayoutError(ImportError):
    """Raised where Python or NumPy keeps its objects in another way than compiled code expects."""


def address_of(array: np.ndarray) -> int:
    """Return the address of an array's first element, from its header."""
    return ctypes.c_int64.from_address(id(array) + ARRAY_DATA).value


def verify() -> None:
    """Prove the struct offsets on live objects.

    Raises
    ------
    LayoutError
        If a field is not where it is expected, naming the field.
    """

    def word(address: int) -> int:
        return ctypes.c_int64.from_address(address).value

    def expect(field: str, found: int, wanted: int) -> None:
        if found != wanted:
            raise LayoutError(
                f"tapegrad reads {field} at an offset that does not hold for this build of "
                f"Python and NumPy {np.__version__} (found {found}, expected {wanted}); "
                "use a standard 64-bit CPython and NumPy >= 2.0"
            )

    expect("the size of a pointer", ctypes.sizeof(ctypes.c_void_p), 8)
    base = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    view = base[:, 1:, ::-2]
    header = id(view)
    interface = view.__array_interface__
    expect("PyArrayObject.data", word(header + ARRAY_DATA), interface["data"][0])
    expect("PyArrayObject.nd", ctypes.c_int32.from_address(header + ARRAY_NDIM).value, 3)
    dims, strides = word(header + ARRAY_DIMS), word(header + ARRAY_STRIDES)
    for axis in range(3):
        expect("PyArrayObject.dimensions", word(dims + 8 * axis), view.shape[axis])
        expect("PyArrayObject.strides", word(strides + 8 * axis), view.strides[axis])
    expect("PyArrayObject.base", word(header + ARRAY_BASE), id(view.base))
    expect("PyArrayObject.descr", word(header + ARRAY_DTYPE), id(view.dtype))
    items = [base, view]
    expect("PyListObject.ob_item", word(word(id(items) + LIST_ITEMS) + 8), id(view))


verify()
