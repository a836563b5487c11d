"""The memory layouts shared by the compiled sweep and Python.

These are the fields of a tape record, the words of a sweep's state, and the tables they point to.
"""

from __future__ import annotations

import numpy as np

from tapegrad.kernels.structs import ARRAY_BASE as ARRAY_BASE
from tapegrad.kernels.structs import ARRAY_DATA as ARRAY_DATA
from tapegrad.kernels.structs import ARRAY_DIMS as ARRAY_DIMS
from tapegrad.kernels.structs import ARRAY_DTYPE as ARRAY_DTYPE
from tapegrad.kernels.structs import ARRAY_NDIM as ARRAY_NDIM
from tapegrad.kernels.structs import ARRAY_STRIDES as ARRAY_STRIDES
from tapegrad.kernels.structs import LIST_ITEMS as LIST_ITEMS
from tapegrad.kernels.structs import OBJECT_TYPE as OBJECT_TYPE

# -- a record of the tape -----------------------------------------------------------------------

RECORD = np.dtype(
    [
        ("slot", "<i8"),  # position on the tape's clock; also identifies the output's adjoint
        ("op", "<u4"),  # row of the op table
        ("flags", "<u4"),  # the bits below
        ("aval", "<i8"),  # shape and dtype of the output, interned
        ("x", "<i8"),  # slot of the first input, 0 = passive; number of inputs if NARY
        ("y", "<i8"),  # slot of the second input; axes of a reduction as bits; reach if NARY
        ("owner", "<u8"),  # address of the list that keeps inputs' owners and saved arrays alive
    ]
)
RECORD_WORDS = RECORD.itemsize // 8
ROW_BYTES = RECORD.itemsize
ROW_OP, ROW_AVAL, ROW_X, ROW_Y, ROW_OWNER = 1, 2, 3, 4, 5  # words; ROW_OP has the flags as well
MASK_32 = 0xFFFFFFFF  # the lower half of a word
SEGMENT_BITS = 12
SEGMENT_ROWS = 1 << SEGMENT_BITS
LEAF_CLOCK = 1 << 40  # leaves have their own clock, above every op

# flags of a record
FREED = 1  # the saved values were freed
PYTHON = 2  # the sweep must stop here, for a user's rule or a hook
NARY = 4  # `x` counts inputs; their slots are an int64 array in the owner
SAVES = 8  # this record saves values (for most records, the op table says so)
NUMBERS = 16  # saves only Python numbers, such as the 2.0 in ``2.0 * x``

# -- an owner: [holder, slot, aval, inputs' owners..., saved values...] ----------------------------

# the holder is the segment, or the record's `Notes`, which hold the segment
OWN_HOLDER, OWN_SLOT, OWN_AVAL, OWN_INPUTS = 0, 1, 2, 3
OWN_FACTORS = OWN_INPUTS + 2  # for KIND_PRODUCTS: a list of arrays, one per input

# -- the op table of compiled code: OP_WORDS int64 words per op -----------------------------------

OP_WORDS = 8
OP_KIND = 0
OP_INPUTS = 1  # inputs that have a slot, at most 2
OP_VALUES = 2  # four words: index in the owner of z, a0, a1, a2, or -1
OP_LAYOUT = 6  # index in the owner of the layout array of a view
OP_TRAITS = 7  # the bits below
TRAIT_SAVES = 1  # saves values, which a sweep without retain_graph frees
TRAIT_PASSES_X, TRAIT_PASSES_Y = 2, 4  # the partial is 1: the cotangent passes unchanged
KIND_PYTHON, KIND_MAP, KIND_REDUCE, KIND_FLAT, KIND_VIEW, KIND_CAST, KIND_PRODUCTS = range(7)

# -- the aval table: AVAL_WORDS int64 words per aval ----------------------------------------------

MAX_DIMS = 32
# Compiled code treats complex numbers as pairs of reals along an additional last axis.
AVAL_DTYPE, AVAL_ITEM, AVAL_SIZE, AVAL_CLASS, AVAL_NDIM, AVAL_DIMS = range(6)
AVAL_WORDS = AVAL_DIMS + MAX_DIMS
AVAL_BYTES = 8 * AVAL_WORDS
DTYPE_F4, DTYPE_F8 = 0, 1

# -- a window: two words per row of a segment -----------------------------------------------------

# word 0: address of the adjoint; word 1: bits below, aval << 8
TOUCHED = 1  # has a contribution, or will get one; undefined while it has no address
FRESH = 2  # the next contribution overwrites
NEEDED = 4  # leads to a requested input
REACHED = 8  # reachable from a root
BORROWED = 16  # shared memory: copy before adding to it
FOREIGN = 32  # memory outside the arena: never recycled
CAPTURE = 64  # report the finished adjoint
PASSES = 128  # some input leads to a requested input
AVAL_SHIFT = 8

# -- the state of a sweep: int64 words ------------------------------------------------------------

(
    S_ADDRESS,  # address of this state
    S_EVENT,
    S_ARG0,
    S_ARG1,
    S_ARG2,
    S_FINISH,  # 1: Python has processed the record under the cursor
    S_CURRENT,  # row of the segment table being swept, -1 between segments
    S_CURSOR,  # row of that segment
    S_PENDING,  # touched rows not yet swept
    S_NEED_MODE,  # 1: only records that lead to requested inputs
    S_RETAIN,  # 1: saved values are kept
    S_SEGMENTS,  # address of the segment table
    S_NSEGMENTS,
    S_LAST,  # offset in that table of the last segment found
    S_AVALS,
    S_OPS,
    S_KERNELS,
    S_BLOCKS,  # scratch for blocks of elements
    S_WALKS,  # scratch for strided walks
    S_SWEPT,  # (owner, op) of swept records whose saved values can be freed
    S_NSWEPT,
    S_CONTRIBUTIONS,  # (slot, array header, flags) of contributions that Python computed
    S_NCONTRIBUTIONS,
    S_CONTRIBUTION,  # the first of them not yet added
    S_WORK,  # elements computed so far, or -1 if the GIL is not held
    S_NONE,  # address of None
    S_RELEASED,  # address of the placeholder for released values
    S_INCREF,  # addresses of the functions that take ...
    S_DECREF,  # ... and drop a reference
    S_BOOL,  # address of the bool dtype
    S_MUTATED,  # address of (buffer, position) pairs
    S_NMUTATED,
    S_BUMP,  # unused memory of the arena
    S_BUMP_END,
    S_HOOKED,  # slot whose hooks have run, so that the sweep continues with it
) = range(35)
S_HEADERS = 35  # z, a0, a1, a2 of the current record: array headers (0: not read) ...
S_DATA = 39  # ... and their data
S_STEPS = 43  # ... and 1, or 0 if the operand is one number; then the same for g
S_GATHERED = 48  # blocks of each, gathered by the strided handler
S_HANDLERS = 52  # addresses by kind, and those of HANDLER_*
S_FREE = 60  # heads of the arena's free lists, one per power of two from 64 bytes
FREE_CLASSES = 48
S_TANGENTS = S_FREE + FREE_CLASSES  # address of the rows of a walk in forward mode (TANGENT_*) ...
S_NEXT_TANGENT = S_TANGENTS + 1  # ... the row where it is ...
S_END_TANGENTS = S_TANGENTS + 2  # ... and their number
S_TIMES = S_TANGENTS + 3  # address of the times of swept records (TIME_*), 0 if not wanted ...
S_NTIMES = S_TIMES + 1  # ... their number ...
S_CLOCK = S_TIMES + 2  # ... the address of `clock_gettime` (0: cycles), and the clock it reads
S_CLOCK_ID = S_TIMES + 3
STATE_WORDS = S_TIMES + 4

# a row of the times of swept records: the record, its op, and when it was done
TIME_SLOT, TIME_OP, TIME_SECONDS, TIME_NANOSECONDS = range(4)  # or cycles in place of seconds
TIME_WORDS = 4
TIMES_CAPACITY = 4096

# a row of a walk in forward mode: the record, the rows of its inputs (or -1), the axes of a
# reduction, the address of its tangent (0: none yet), and whether compiled code computes it
TANGENT_WORDS = 8
TANGENT_BYTES = 8 * TANGENT_WORDS
(
    TANGENT_OP,
    TANGENT_AVAL,
    TANGENT_OWNER,
    TANGENT_X,
    TANGENT_Y,
    TANGENT_MASK,
    TANGENT_DATA,
    TANGENT_COMPILED,
) = range(TANGENT_WORDS)

# KIND_FLAT and the kinds after it stand in between
HANDLER_STRIDED, HANDLER_CHECK, HANDLER_TANGENT = 0, 1, 7
NO_MASK = -1

# the segment table
SEG_WORDS = 8
SEG_BYTES = 8 * SEG_WORDS
SEG_NUMBER, SEG_ROWS, SEG_WINDOW, SEG_TOP, SEG_COUNT, SEG_LOW, SEG_HIGH, SEG_LEAF = range(SEG_WORDS)

(
    EVENT_DONE,
    EVENT_SEGMENT,  # ARG0: number of a segment that is not in the table
    EVENT_MEMORY,  # ARG0: bytes missing in the arena
    EVENT_ARRAY,  # ARG0: slot, ARG1: aval, ARG2: 1 to copy: its adjoint needs memory from Python
    EVENT_PYTHON,  # ARG0: slot, ARG1: owner
    EVENT_CAPTURE,  # ARG0: slot
    EVENT_FREED,  # ARG0: slot, ARG1: op
    EVENT_MUTATED,  # ARG0: slot, ARG1: op, ARG2: position of the mutation
    EVENT_SWEPT,  # the list of swept records is full
    EVENT_KERNEL,  # ARG0: op, ARG1: dtype, ARG2: input: not compiled yet
    EVENT_HANDLER,  # ARG0: handler not compiled yet
    EVENT_LARGE,  # much work: continue without the GIL
    EVENT_TIMES,  # the list of times is full
) = range(13)

SWEPT_CAPACITY = 4096
CONTRIBUTION_WORDS = 3
ADOPTED = 1 << 20  # flag of a contribution: the array became the adjoint
LARGE_WORK = 1 << 17  # elements after which the sweep releases the GIL

KERNEL_INPUTS = 3  # kernels per op and dtype
BLOCK_ELEMENTS = 1024
BLOCKS = 12  # those of the strided handler, then ...
SPREAD = 7  # ... those filled with one number: z, a0, a1, a2, g
WALK_WORDS = 4 + 3 * MAX_DIMS
WALKS = 6
