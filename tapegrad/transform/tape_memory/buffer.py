"""The array of a tape, and the block of words that manages its memory.

All versions of the array share the block, and the array grows in place: so a large tape is never
copied. A compiled module leaves its tape for the next call, and takes it again.

An array of numba has an owner, whose references are counted, and a parent, the Python object that
it was made of. A tape never becomes a Python object, so its parent is the owner of the block, and
it has no owner itself: counting references in each iteration of a loop that may enlarge the tape
can take as long as the iteration. Where a gradient is differentiated, its tape is an array like
any other, with an owner.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_new_ref
from numba.extending import intrinsic
from numba.np import arrayobj

from tapegrad.kernels.llvm.errors import at_error
from tapegrad.transform.tape_memory.limit import load_limit

FIRST = 64  # initial size of a tape, in numbers
_KEPT_SMALL = 8192  # tapes of at most as many numbers are never made smaller
_SMALL_CALLS = 10  # so many calls in a row that need less than a quarter make a tape smaller
_UNTOUCHED = 0x7FF4_7461_7065_3A29  # a nan that no computation yields, at a quarter of a tape

POINTER = ir.IntType(8).as_pointer()
WORD = ir.IntType(64)
TAPE = types.Array(types.float64, 1, "C")
# the size of the array in numbers; calls in a row that needed little of it; the position after the
# last reference to an array; bytes of the arrays that are referred to; the address of the array;
# for workers (see there): the block of the next tape; how much of this one is used; the block of
# the caller's tape; the bytes of this one that are counted there; those of all workers
_WORDS = (
    *("size", "small_calls", "last", "kept", "array"),
    *("next", "top", "caller", "counted", "others"),
)


class Block:
    """The block of words of a tape, in code that is being generated."""

    def __init__(self, context, builder, meminfo):
        self.builder = builder
        data = context.nrt.meminfo_data(builder, meminfo)
        self.words = builder.bitcast(data, WORD.as_pointer())

    def _place(self, word):
        return cgutils.gep_inbounds(self.builder, self.words, _WORDS.index(word))

    def get(self, word):
        return self.builder.load(self._place(word))

    def add(self, word, value):
        """Add to a word, also if other threads do; return what it was."""
        return self.builder.atomic_rmw("add", self._place(word), value, "monotonic")

    def set(self, word, value):
        self.builder.store(value, self._place(word))

    def resize(self, size):
        """Change the size of the array; return whether there is memory for it."""
        builder = self.builder
        before = builder.inttoptr(self.get("array"), POINTER)
        kind = ir.FunctionType(POINTER, [POINTER, WORD])
        realloc = cgutils.get_or_insert_function(builder.module, kind, "realloc")
        after = builder.call(realloc, [before, builder.mul(size, number(8))])
        found = builder.icmp_unsigned("!=", after, ir.Constant(POINTER, None))
        with builder.if_then(found, likely=True):
            self.set("array", builder.ptrtoint(after, WORD))
            self.set("size", size)
        return found

    def free(self):
        """Free the array."""
        before = self.builder.inttoptr(self.get("array"), POINTER)
        kind = ir.FunctionType(ir.VoidType(), [POINTER])
        free = cgutils.get_or_insert_function(self.builder.module, kind, "free")
        self.builder.call(free, [before])
        for word in ("size", "last", "kept", "array"):
            self.set(word, number(0))

    def mark(self):
        """Mark a quarter of a large array, before its first use."""
        large = self.builder.icmp_signed(">", self.get("size"), number(_KEPT_SMALL))
        with self.builder.if_then(large, likely=False):
            self.builder.store(number(_UNTOUCHED), self.quarter())

    def shrink(self):
        """Make a large array smaller after ten uses in a row that needed less than a quarter."""
        builder, size = self.builder, self.get("size")
        large = builder.icmp_signed(">", size, number(_KEPT_SMALL))
        with builder.if_then(large, likely=False):
            # values are written from the start on without gaps
            found = builder.load(self.quarter())
            is_small = builder.icmp_unsigned("==", found, number(_UNTOUCHED))
            calls = builder.add(self.get("small_calls"), number(1))
            calls = builder.select(is_small, calls, number(0))
            self.set("small_calls", calls)
            with builder.if_then(builder.icmp_unsigned("==", calls, number(_SMALL_CALLS))):
                self.resize(builder.lshr(size, number(2)))
                self.set("small_calls", number(0))

    def quarter(self):
        """Return the address of the word at a quarter of the array."""
        first = self.builder.inttoptr(self.get("array"), WORD.as_pointer())
        return self.builder.gep(first, [self.builder.lshr(self.get("size"), number(2))])


def number(value):
    """Return a word with a value."""
    return ir.Constant(WORD, value)


def owner_of(context, builder, kind, tape):
    """Return the owner of the block of words of a tape."""
    array = context.make_array(kind)(context, builder, tape)
    parent = builder.bitcast(array.parent, POINTER)
    is_owned = builder.icmp_unsigned("!=", array.meminfo, ir.Constant(POINTER, None))
    return builder.select(is_owned, array.meminfo, parent)


def block_of(context, builder, kind, tape):
    """Return the block of words of a tape."""
    return Block(context, builder, owner_of(context, builder, kind, tape))


def array_of(context, builder, owner, is_owned=False):
    """Return a tape as an array."""
    block = Block(context, builder, owner)
    array = context.make_array(TAPE)(context, builder)
    arrayobj.populate_array(
        array,
        data=builder.inttoptr(block.get("array"), array.data.type),
        shape=cgutils.pack_array(builder, [block.get("size")]),
        strides=cgutils.pack_array(builder, [number(8)]),
        itemsize=number(8),
        meminfo=owner if is_owned else None,
        parent=None if is_owned else builder.bitcast(owner, array.parent.type),
    )
    return array._getvalue()


def made(context, builder, size):
    """Return the owner of a new tape."""
    meminfo = context.nrt.meminfo_alloc_dtor(builder, number(8 * len(_WORDS)), _destructor(builder))
    block = Block(context, builder, meminfo)
    for word in _WORDS:
        block.set(word, number(0))
    _check(context, builder, block.resize(size))
    return meminfo


def _destructor(builder):
    """Return the function that frees the array of a tape without users."""
    kind = ir.FunctionType(ir.VoidType(), [POINTER, WORD, POINTER])
    function = cgutils.get_or_insert_function(builder.module, kind, "tapegrad_free_tape")
    if function.is_declaration:
        function.linkage = "linkonce_odr"
        inner = ir.IRBuilder(function.append_basic_block())
        words = inner.bitcast(function.args[0], WORD.as_pointer())
        place = cgutils.gep_inbounds(inner, words, _WORDS.index("array"))
        kind = ir.FunctionType(ir.VoidType(), [POINTER])
        free = cgutils.get_or_insert_function(builder.module, kind, "free")
        inner.call(free, [inner.inttoptr(inner.load(place), POINTER)])
        following = inner.load(cgutils.gep_inbounds(inner, words, _WORDS.index("next")))
        with inner.if_then(inner.icmp_unsigned("!=", following, number(0))):
            decref(inner, inner.inttoptr(following, POINTER))
        inner.ret_void()
    return function


def _check(context, builder, found):
    """Raise MemoryError unless there was memory."""
    with builder.if_then(builder.not_(found), likely=False):
        context.call_conv.return_user_exc(
            builder, MemoryError, ("tapegrad: there is no memory for the tape",)
        )


def _place(builder):
    """Return the variable of the compiled module that holds the tape that was left."""
    found = builder.module.globals.get("tapegrad_tape")
    if found is None:
        found = ir.GlobalVariable(builder.module, POINTER, "tapegrad_tape")
        found.linkage = "internal"
        found.initializer = ir.Constant(POINTER, None)
    return found


def _taken(is_owned):
    def codegen(context, builder, signature, args):
        empty = ir.Constant(POINTER, None)
        left = builder.atomic_rmw("xchg", _place(builder), empty, "acq_rel")
        owner = builder.alloca(POINTER)
        builder.store(left, owner)
        with builder.if_then(builder.icmp_unsigned("!=", left, empty)):
            size = builder.mul(Block(context, builder, left).get("size"), number(8))
            too_large = builder.icmp_signed(">", size, load_limit(builder))
            with builder.if_then(too_large, likely=False):  # the limit was lowered
                decref(builder, left)
                builder.store(empty, owner)
        with builder.if_then(builder.icmp_unsigned("==", builder.load(owner), empty)):
            builder.store(made(context, builder, number(FIRST)), owner)
        held = builder.load(owner)
        if not is_owned:
            builder.store(held, _in_use(context, builder))
        Block(context, builder, held).mark()
        tape = array_of(context, builder, held, is_owned)
        return impl_ret_new_ref(context, builder, TAPE, tape)

    return TAPE(), codegen


def _in_use(context, builder):
    """Return the variable of the function for the tape that it has taken, null for none."""
    function = builder.function
    found = function.__dict__.get("tapegrad_tape")
    if found is None:
        found = cgutils.alloca_once(builder, POINTER, zfill=True)
        function.tapegrad_tape = found
        at_error(builder, lambda builder: _abandon(context, builder, builder.load(found)))
    return found


def _abandon(context, builder, owner):
    """Give up a tape, or null, and those of its workers, with the arrays that they refer to."""
    kind = ir.FunctionType(ir.VoidType(), [POINTER])
    function = cgutils.get_or_insert_function(builder.module, kind, "tapegrad_abandon_tape")
    if function.is_declaration:
        function.linkage = "linkonce_odr"
        _write_abandoning(context, function)
    builder.call(function, [owner])


def _write_abandoning(context, function):
    (first,) = function.args
    names = ("entry", "next_tape", "tape", "next_reference", "reference", "empty", "end")
    entry, next_tape, tape, next_reference, reference, empty, end = map(
        function.append_basic_block, names
    )
    builder = ir.IRBuilder(entry)
    owner, place = builder.alloca(POINTER), builder.alloca(WORD)
    builder.store(first, owner)
    builder.branch(next_tape)

    builder.position_at_end(next_tape)
    current = builder.load(owner)
    is_none = builder.icmp_unsigned("==", current, ir.Constant(POINTER, None))
    builder.cbranch(is_none, end, tape)

    builder.position_at_end(tape)
    block = Block(context, builder, current)
    builder.store(block.get("last"), place)
    builder.branch(next_reference)

    builder.position_at_end(next_reference)
    after = builder.load(place)
    builder.cbranch(builder.icmp_unsigned("==", after, number(0)), empty, reference)

    builder.position_at_end(reference)
    words = builder.inttoptr(block.get("array"), WORD.as_pointer())
    at = builder.gep(words, [builder.sub(after, number(1))])
    held = builder.and_(builder.load(at), number(~1))
    builder.store(builder.load(builder.gep(at, [number(1)])), place)
    decref(builder, builder.inttoptr(held, POINTER))
    builder.branch(next_reference)

    builder.position_at_end(empty)
    builder.store(builder.inttoptr(block.get("next"), POINTER), owner)
    builder.branch(next_tape)

    builder.position_at_end(end)
    is_taken = builder.icmp_unsigned("!=", first, ir.Constant(POINTER, None))
    with builder.if_then(is_taken):
        decref(builder, first)
    builder.ret_void()


@intrinsic
def take_tape(typingctx):
    """Return the tape that the last call of this function left behind, or a new one.

    Its address is in a variable of the compiled module, which is cleared while the tape is in use:
    threads and nested calls each have a separate tape. Whoever takes a tape has to give it back.
    """
    return _taken(is_owned=False)


@intrinsic
def take_owned_tape(typingctx):
    """Return a tape as an array with an owner: for functions that are differentiated."""
    return _taken(is_owned=True)


@intrinsic
def give_tape(typingctx, tape):
    """Leave a tape for the next call.

    A large one of which ten calls in a row have needed less than a quarter is made smaller.
    """

    def codegen(context, builder, signature, args):
        kind = signature.args[0]
        builder.store(ir.Constant(POINTER, None), _in_use(context, builder))
        block_of(context, builder, kind, args[0]).shrink()
        context.nrt.incref(builder, kind, args[0])  # if it has an owner
        owner = owner_of(context, builder, kind, args[0])
        left = builder.atomic_rmw("xchg", _place(builder), owner, "acq_rel")
        with builder.if_then(builder.icmp_unsigned("!=", left, ir.Constant(POINTER, None))):
            decref(builder, left)
        return context.get_dummy_value()

    return types.none(tape), codegen


def decref(builder, meminfo):
    """Give up a reference to the owner of an array."""
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [POINTER]), "NRT_decref"
    )
    builder.call(function, [meminfo])


@intrinsic
def enlarged(typingctx, tape, size):
    """Return a tape with another size. It replaces the given one, which must not be used again."""

    def codegen(context, builder, signature, args):
        kind = signature.args[0]
        owner = owner_of(context, builder, kind, args[0])
        _check(context, builder, Block(context, builder, owner).resize(args[1]))
        before = context.make_array(kind)(context, builder, args[0])
        after = context.make_array(TAPE)(context, builder, array_of(context, builder, owner))
        after.meminfo, after.parent = before.meminfo, before.parent
        context.nrt.incref(builder, kind, args[0])  # if it has an owner
        return impl_ret_new_ref(context, builder, TAPE, after._getvalue())

    return TAPE(tape, types.int64), codegen


@intrinsic
def new_tape(typingctx, size):
    """Return a new tape, which is an array with an owner."""

    def codegen(context, builder, signature, args):
        tape = array_of(context, builder, made(context, builder, args[0]), is_owned=True)
        return impl_ret_new_ref(context, builder, TAPE, tape)

    return TAPE(types.int64), codegen


@intrinsic
def inherit(typingctx, larger, tape):
    """Note the references that are on a tape for its larger copy, and no longer for itself."""

    def codegen(context, builder, signature, args):
        after, before = (
            block_of(context, builder, kind, array)
            for kind, array in zip(signature.args, args, strict=True)
        )
        for word in ("last", "kept"):
            after.set(word, before.get(word))
            before.set(word, number(0))
        return context.get_dummy_value()

    return types.none(larger, tape), codegen


@intrinsic
def free_array(typingctx, tape):
    """Free the memory of a tape."""

    def codegen(context, builder, signature, args):
        block_of(context, builder, signature.args[0], args[0]).free()
        return context.get_dummy_value()

    return types.none(tape), codegen


@intrinsic
def note_bytes(typingctx, tape, own):
    """Note that a tape has `own` bytes; return those of the other tapes of its call."""

    def codegen(context, builder, signature, args):
        block = block_of(context, builder, signature.args[0], args[0])
        result = builder.alloca(WORD)
        builder.store(block.get("others"), result)
        address = block.get("caller")
        with builder.if_then(builder.icmp_unsigned("!=", address, number(0)), likely=False):
            caller = Block(context, builder, builder.inttoptr(address, POINTER))
            change = builder.sub(args[1], block.get("counted"))
            block.set("counted", args[1])
            others = builder.sub(caller.add("others", change), builder.sub(args[1], change))
            size = builder.mul(caller.get("size"), number(8))
            builder.store(builder.add(others, builder.add(size, caller.get("kept"))), result)
        return builder.load(result)

    return types.int64(tape, types.int64), codegen


@intrinsic
def kept_bytes(typingctx, tape):
    """Return the bytes of the arrays that are referred to, at least."""

    def codegen(context, builder, signature, args):
        return block_of(context, builder, signature.args[0], args[0]).get("kept")

    return types.int64(tape), codegen


@intrinsic
def last_reference(typingctx, tape):
    """Return the position of the last reference to an array, -1 if there is none."""

    def codegen(context, builder, signature, args):
        last = block_of(context, builder, signature.args[0], args[0]).get("last")
        return builder.sub(last, number(1))

    return types.int64(tape), codegen
