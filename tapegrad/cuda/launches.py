"""Noted kernels that are started again, with other memory for arguments and results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from tapegrad.cuda.driver import Graph
from tapegrad.cuda.memory import POOL, Elements, Memory
from tapegrad.cuda.recording import NOW, Recording
from tapegrad.forks import object_lock

_MOST_GRAPHS = 32  # of a program


class Launches:
    """Kernels that are started again, with other memory for arguments and results.

    Kernels whose values nothing reads are left out.

    The first call with memory at some addresses starts them one by one. The second makes a graph
    of them: memory is used again, so programs that call a function many times call it with few
    sets of addresses.

    Parameters
    ----------
    recorded
        The recording.
    memories
        The memory that is replaced in each call.
    """

    def __init__(self, recorded: Recording, memories: Sequence[Memory]) -> None:
        self._used = recorded.pool, recorded.kept  # by the kernels, in each call
        self._lock = object_lock()
        self._launches: list[tuple[Any, Any, Any, list[Any]]] = []
        self._replaced: list[list[tuple[int, int]]] = []  # places of arguments, and memories
        number = {memory.block: k for k, memory in enumerate(memories)}
        for kernel, grid, block, args in _needed(recorded, set(number)):
            replaced = [
                (place, number[arg.block])
                for place, arg in enumerate(args)
                if isinstance(arg, Elements) and arg.block in number
            ]
            kept = [*args]
            for place, _ in replaced:
                kept[place] = kept[place]._replace(block=None)
            self._launches.append((kernel, grid, block, kept))
            self._replaced.append(replaced)
        for memory in memories:  # of the first arguments and results, which are not kept
            POOL.adopt(memory)
        self._graphs: OrderedDict[tuple[int, ...], Graph | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._launches)

    def start(self, memories: Sequence[Memory]) -> None:
        """Start the kernels with other memory."""
        addresses = tuple([memory.block.address for memory in memories])
        with self._lock:  # calls share the memory of what is computed on the way
            recording = NOW.get()
            if recording is not None:  # it notes kernels one by one, and needs their memory
                recording.keep(self)
            graph = None if recording is not None else self._graphs.get(addresses)
            if graph is None and recording is None and self._is_for_graph(addresses):
                launches = self._with(memories)
                graph = Graph([(kernel.entry, *others) for kernel, *others in launches])
                self._graphs[addresses] = graph
            if graph is not None:
                graph.start()
                return
            for kernel, grid, block, args in self._with(memories):
                kernel.start(grid, block, *args)

    def _is_for_graph(self, addresses: tuple[int, ...]) -> bool:
        """Whether there were memories at some addresses before; the next time there were."""
        graphs = self._graphs
        if addresses in graphs:
            graphs.move_to_end(addresses)
            return len(self) > 1 and all(kernel.entry for kernel, *_ in self._launches)
        graphs[addresses] = None
        if len(graphs) > _MOST_GRAPHS:
            graphs.popitem(last=False)
        return False

    def _with(self, memories: Sequence[Memory]) -> Iterator[tuple[Any, Any, Any, list[Any]]]:
        """Yield the kernels with their arguments, for other memory."""
        for (kernel, grid, block, args), places in zip(self._launches, self._replaced, strict=True):
            given = [*args]
            for place, number in places:
                given[place] = given[place]._replace(block=memories[number].block)
            yield kernel, grid, block, given


def _needed(recorded: Recording, read: set[Any]) -> list[Any]:
    """Return the kernels that write to memory that is read later: by them, or in the end.

    Parameters
    ----------
    recorded
        The recording.
    read
        The blocks of memory that are read in the end.
    """
    found = []
    taken = [*recorded.taken]
    for number, launch in reversed([*enumerate(recorded.launches)]):
        while taken and taken[-1][0] > number:  # nobody reads what was there before
            read.discard(taken.pop()[1])
        kernel, _, _, args = launch
        blocks = [(k, arg.block) for k, arg in enumerate(args) if isinstance(arg, Elements)]
        written = {block for k, block in blocks if k in kernel.outputs}
        if not written or written & read:
            # what it writes to may keep elements that were there before
            read.update(block for _, block in blocks)
            found.append(launch)
    return found[::-1]
