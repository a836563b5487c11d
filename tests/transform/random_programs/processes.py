"""Work in processes of its own: what crashes or does not end there is seen and named here."""

import collections
import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import time

CONTEXT = multiprocessing.get_context("fork")
CHUNK = 150  # programs of one process, which grows with each of them


def _serve(connection, work, items, folder):
    """Do the work for each item, and say what is begun and what is done."""
    os.environ["TAPEGRAD_CACHE_DIR"] = str(folder)
    for item in items:
        connection.send(("begin", item, None))
        connection.send(("end", item, work(item)))
    connection.send(("over", None, None))
    connection.close()


@dataclasses.dataclass
class Lost:
    """What is known of work that had no end: "crashed" or "timeout", and how."""

    outcome: str
    text: str
    compiled: bool = True
    shapes: frozenset = frozenset()


class Worker:
    """A process that works through items."""

    def __init__(self, work, items, folder):
        self.items = collections.deque(items)
        self.current = None
        self.since = time.monotonic()
        self.folder = folder / f"worker_{time.monotonic_ns()}"
        self.connection, other = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(
            target=_serve, args=(other, work, items, self.folder), daemon=True
        )
        self.process.start()
        other.close()

    def receive(self):
        """One result as a pair, None for news without one; EOFError when there is no more."""
        what, item, result = self.connection.recv()
        if what == "over":
            raise EOFError
        self.since = time.monotonic()
        if what == "begin":
            self.current = item
            return None
        self.current = None
        self.items.popleft()
        return item, result

    def late(self, limit):
        return self.current is not None and time.monotonic() - self.since > limit

    def end(self, kill=False):
        """What killed it, as text."""
        if kill:
            self.process.kill()
        self.process.join()
        self.connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        code = self.process.exitcode
        if code < 0:
            with contextlib.suppress(ValueError):
                return signal.Signals(-code).name
        return f"exit code {code}"


def results(work, items, folder, processes, limit):
    """Results of work on items, as pairs; those of one that crashes or takes too long are `Lost`.

    Parameters
    ----------
    work : callable
        Takes an item; it runs in a fork of this process.
    items : iterable
    folder : pathlib.Path
        For files of the processes.
    processes : int
    limit : float
        Seconds for one item.
    """
    waiting = collections.deque()
    source = iter(items)
    workers = []

    def refill():
        while len(workers) < processes:
            chunk = [waiting.popleft() for _ in range(min(len(waiting), CHUNK))]
            if not chunk:
                chunk = [item for item, _ in zip(source, range(CHUNK), strict=False)]
            if not chunk:
                return
            workers.append(Worker(work, chunk, folder))

    try:
        refill()
        while workers:
            ready = multiprocessing.connection.wait([w.connection for w in workers], timeout=1.0)
            for worker in list(workers):
                lost = None
                if worker.connection in ready:
                    try:
                        found = worker.receive()
                    except EOFError:
                        workers.remove(worker)
                        lost = Lost("crashed", worker.end())
                    else:
                        if found is not None:
                            yield found
                        continue
                elif worker.late(limit):
                    workers.remove(worker)
                    worker.end(kill=True)
                    lost = Lost("timeout", f"not done in {limit:g} seconds")
                if lost is not None:
                    if worker.items:
                        yield worker.items.popleft(), lost
                        waiting.extend(worker.items)
                    refill()
    finally:
        for worker in workers:
            worker.end(kill=True)


def isolated(work, item, folder, limit):
    """The result of work on one item, in a process of its own."""
    return next(results(work, [item], folder, 1, limit))[1]
