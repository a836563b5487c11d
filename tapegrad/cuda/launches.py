"""Noted kernels that are started again, with other memory for arguments and results."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from tapegrad.cuda.driver import Graph
from tapegrad.cuda.memory import Elements, Memory
from tapegrad.cuda.recording import NOW, Recording

_MOST_GRAPHS = 32  # of a program


class Launches:
    """Kernels that are started again, with other memory for arguments and results.

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
        self._launches = recorded.launches
        self._recorded = recorded  # has the memory that they use
        self._lock = threading.Lock()
        number = {id(memory): k for k, memory in enumerate(memories)}
        self._replaced = [
            [
                (place, number[id(arg.memory)])
                for place, arg in enumerate(args)
                if isinstance(arg, Elements) and id(arg.memory) in number
            ]
            for *_, args in recorded.launches
        ]
        self._graphs: OrderedDict[tuple[int, ...], Graph | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._launches)

    def start(self, memories: Sequence[Memory]) -> None:
        """Start the kernels with other memory."""
        addresses = tuple([memory.block.address for memory in memories])
        with self._lock:  # calls share the memory of what is computed on the way
            is_noted = NOW.get() is not None  # which needs the kernels, one by one
            graph = None if is_noted else self._graphs.get(addresses)
            if graph is None and not is_noted and self._is_for_graph(addresses):
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
                given[place] = given[place]._replace(memory=memories[number])
            yield kernel, grid, block, given
