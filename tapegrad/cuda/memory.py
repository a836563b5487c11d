"""Memory of the device: blocks that are used again.

Allocating memory of a device is slow, and freeing it waits for all kernels. So blocks that are no
longer used are kept for later arrays. All kernels run on one stream, in order: a kernel that writes
to a block starts after those that read what was there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol
from weakref import ref

import numpy as np

from tapegrad.cuda.recording import NOW
from tapegrad.cuda.toolkit import is_simulated, require

_SMALLEST = 512  # bytes
_LARGE = 1 << 20  # from here on, sizes are multiples of it instead of powers of two


class Result(Protocol):
    """A result that may not be computed yet."""

    reference: ref[Result]

    def compute(self) -> None:
        """Compute it."""

    @property
    def is_waiting(self) -> bool:
        """Whether it is not computed yet."""

    @property
    def is_needed(self) -> bool:
        """Whether something refers to it, other than results that are not computed yet."""


class Waiting:
    """Results that are not computed yet, by weak references.

    Those that are gone, or computed, are left out when there are many. Threads may add to them.
    """

    __slots__ = ("_limit", "_references")
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._limit = 64
        self._references: list[ref[Result]] = []

    def add(self, reference: ref[Result]) -> None:
        """Remember a result."""
        references = self._references
        references.append(reference)
        if len(references) > self._limit and self._lock.acquire(blocking=False):
            try:
                count = len(references)
                kept = [r for r in references[:count] if (x := r()) is not None and x.is_waiting]
                references[:count] = kept  # others may have been added behind them
                self._limit = 64 + 2 * len(kept)
            finally:
                self._lock.release()

    def __iter__(self) -> Iterator[Result]:
        for reference in self._references[:]:
            result = reference()
            if result is not None and result.is_waiting:
                yield result


WAITING = Waiting()
"""All results that are not computed yet."""


class Block:
    """A block of memory of the device.

    Parameters
    ----------
    raw
        The bytes, as an array of numba.

    Attributes
    ----------
    size
        Number of bytes.
    address
        Of the first byte.
    """

    __slots__ = ("__weakref__", "_raw", "_typed", "address", "size")

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._typed: dict[np.dtype, Any] = {}
        self.size = int(raw.size)
        self.address = _address(raw)

    def of(self, dtype: np.dtype) -> Any:
        """Return the elements of a type that it has room for, as a flat array of numba."""
        found = self._typed.get(dtype)
        if found is None:
            size = self.size // dtype.itemsize * dtype.itemsize
            whole = self._raw if size == self.size else self._raw[:size]
            found = self._typed[dtype] = whole.view(dtype)
        return found


class Memory:
    """A block that arrays use; it returns to the pool when nothing refers to this object.

    Parameters
    ----------
    block
        The block.
    pool
        Where the block returns to; None if it belongs to somebody else.
    owner
        What keeps the memory of somebody else alive.

    Attributes
    ----------
    block
        As above.
    is_shared
        Whether others than this package may write to the elements.
    readers
        What will read the elements.
    """

    __slots__ = ("__weakref__", "block", "is_shared", "owner", "pool", "readers")

    def __init__(self, block: Block, pool: Pool | None, owner: Any = None) -> None:
        self.block = block
        self.owner = owner
        self.is_shared = pool is None
        self.pool = pool
        self.readers = Waiting()

    def settle(self) -> None:
        """Compute what will read the elements, before they are written to."""
        for reader in self.readers:
            reader.compute()

    def share(self) -> None:
        """Note that others may write to the elements, without a word, from now on."""
        self.is_shared = True
        self.settle()

    def __del__(self) -> None:
        if self.pool is not None:
            self.pool.give_back(self.block)


class Elements(NamedTuple):
    """The elements of a type in a block of memory, from one on: what a kernel takes for an array.

    Attributes
    ----------
    block
        The block. What starts a kernel needs no more: the memory may be used again after it.
    dtype
        The type.
    first
        The position of the first one.
    """

    block: Block
    dtype: np.dtype
    first: int = 0

    @property
    def address(self) -> int:
        """Of the first one."""
        return self.block.address + self.first * self.dtype.itemsize

    @property
    def size(self) -> int:
        """How many there are."""
        return self.block.size // self.dtype.itemsize - self.first

    def for_numba(self) -> Any:
        """Return them as a flat array of numba."""
        whole = self.block.of(self.dtype)
        return whole[self.first :] if self.first else whole


def _address(raw: Any) -> int:
    if is_simulated():
        return int(raw.__array_interface__["data"][0])
    return int(raw.device_ctypes_pointer.value)


class Pool:
    """Blocks of memory that are used again.

    It refers to all of its blocks. If only arrays did, the garbage collector would finalize the
    block of an array in a cycle, and numba free it, before the array gives it back.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Block]] = {}  # by size
        self._blocks: set[Block] = set()

    def take(self, nbytes: int) -> Memory:
        """Return a block of at least some bytes.

        Raises
        ------
        MemoryError
            If the device has no memory for it.
        """
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length()) if nbytes else _SMALLEST
        if nbytes > _LARGE:
            size = -(-nbytes // _LARGE) * _LARGE
        known = self._free.get(size)
        if known:
            try:
                return Memory(known.pop(), self)
            except IndexError:  # another thread was faster
                pass
        block = Block(self._allocate(size))
        self._blocks.add(block)
        return Memory(block, self)

    def _allocate(self, size: int) -> Any:
        cuda = require()
        for attempt in range(2):
            try:
                return cuda.device_array(size, np.uint8)
            except Exception as error:
                if "OUT_OF_MEMORY" not in str(error):
                    raise
                if not attempt:
                    self.clear()
        free = cuda.current_context().get_memory_info().free
        raise MemoryError(
            f"there is no memory on the device for {size} bytes ({free} are free); delete tensors "
            "or compute with smaller ones"
        )

    def give_back(self, block: Block) -> None:
        """Keep a block for later arrays."""
        self._free.setdefault(block.size, []).append(block)

    def adopt(self, memory: Memory) -> None:
        """Take memory over from the pool that it is of."""
        if memory.pool is not None:
            memory.pool._blocks.discard(memory.block)
            memory.pool = self
            self._blocks.add(memory.block)

    def clear(self) -> None:
        """Free all blocks that are not in use."""
        for blocks in [*self._free.values()]:
            while blocks:
                self._blocks.discard(blocks.pop())

    @property
    def nbytes(self) -> int:
        """Size of the blocks that are not in use, in bytes."""
        return sum(size * len(blocks) for size, blocks in self._free.items())


POOL = Pool()


def take(nbytes: int) -> Memory:
    """Return a block for an array: of the pool, or of that of the recording that is made."""
    recording = NOW.get()
    if recording is None:
        return POOL.take(nbytes)
    memory: Memory = recording.pool.take(nbytes)
    recording.taken.append((len(recording.launches), memory.block))
    return memory


def empty_cache() -> None:
    """Free the memory of the device that is kept for later tensors, for other programs to use.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.cuda.empty_cache()
    """
    POOL.clear()


def synchronize() -> None:
    """Wait until the device has done all that was asked of it, to measure times for instance.

    Results that are not computed yet are computed.

    Raises
    ------
    CudaUnavailableError
        If there is no device.

    Examples
    --------
    >>> import tapegrad as tg
    >>> if tg.cuda.is_available():
    ...     tg.cuda.synchronize()
    """
    compute_all()
    require().synchronize()


def compute_all() -> None:
    """Launch what results that something refers to still wait for."""
    for result in WAITING:
        if result.is_needed:
            result.compute()
