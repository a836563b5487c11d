"""The functions that run a loop in parallel.

A *worker* runs its share of the iterations. The range is cut into stretches, which are dealt out
in turn: so loops whose iterations take longer and longer are balanced, and the same iterations are
always done by the same worker. Stretches of even numbers come first, then those of odd numbers.
The *guarded* worker reports an error instead of raising it. The function for all workers runs
them, adds up what they found in a fixed order, and raises the error of the first that failed.

Where a loop writes to the tape, each worker has a tape of its own, which belongs to that of the
caller. How many workers there were, and what they wrote, is on the tape of the caller, where the
reverse loop finds it.
"""

from __future__ import annotations

import ast

from tapegrad.transform.builder import Builder
from tapegrad.transform.independence.plan import Plan
from tapegrad.transform.ir import name, names_in
from tapegrad.transform.nodes import any_of, call_of, integer, names, returned_of, tuple_of
from tapegrad.transform.printer import PARALLEL
from tapegrad.transform.syntax import unlike
from tapegrad.transform.trees import Part, quoted, quoted_block

Names = dict[str, str]  # of generated code, by their roles
_RESULTS = {"pushes": ["tape", "top"], "pops": ["top"]}  # of a function for all workers

_FAILED = (
    "an iteration of a prange loop raised an error, which is lost in its thread; with range in "
    "place of prange the derivative raises it"
)


# of a call in a try block: CPython builds a tuple of more, in a way that numba does not know there
_MOST_ARGUMENTS = 30


class LoopCode:
    """Builds the functions for one loop.

    Parameters
    ----------
    plan
        What is known of the loop.
    names
        The names of the worker, of the guarded worker, and of the function for all workers.
    tape
        What the loop does with the tape: ``pushes``, ``pops``, nothing, or it leaves it as it was
        and uses an ``own`` one.
    """

    def __init__(self, plan: Plan, names: list[str], tape: str) -> None:
        self.plan = plan
        self.tape = tape
        self.worker_name, self.guarded_name, self.driver_name = names
        self.taken = {*names_in(plan.loop), *plan.given, *plan.sums}
        # the parameters of a worker that do not come from the loop
        roles = ("worker", "workers", "phase", "phases", "first", "step", "count")
        self.own = {role: self._unlike(role) for role in roles}
        self.has_tapes = tape in _RESULTS
        self.tapes = self._unlike("tapes")

    def _unlike(self, name: str) -> str:
        """Return a variant of a name that the loop does not use."""
        return unlike(name, self.taken)

    def _parameters(self) -> list[str]:
        """Return the parameters of a worker."""
        tapes = [self.tapes] if self.has_tapes else []
        return [*self.own.values(), *self.plan.given, *tapes]

    def _zeros(self) -> list[ast.stmt]:
        """Return the statements that begin sums."""
        sums = self.plan.sums.items()
        found = [quoted_block("x = kind(0)", x=sum_, kind=f"np.{kind}") for sum_, kind in sums]
        return [statement for statements in found for statement in statements]

    def worker(self) -> ast.FunctionDef:
        """Return the worker."""
        is_backwards = self.tape == "pops"  # the same iterations as in the forward loop
        start, end = self._tape_of_worker()
        halves, numbers, turned = "range(phase, phase + phases)", "range(blocks // workers)", ""
        if is_backwards:
            halves = "range(phase + phases - 1, phase - 1, -1)"
            numbers = "range(blocks // workers - 1, -1, -1)"
            turned = "low, high = count - high, count - low"
        step = self.plan.bounds[2]
        if integer(step) not in (1, -1):  # these are known to whoever reads the loop again
            step = name(self.own["step"])
        roles = ("number", "block", "blocks", "half", "low", "high")
        own = {**self.own, **{role: self._unlike(role) for role in roles}}
        parts: dict[str, Part] = {**own, "step": step}
        builder = Builder()
        builder.quote(
            """
zeros
start
blocks = runtime.blocks_of(count, workers)
for half in halves:
    for number in numbers:
        block = runtime.share_of(number, worker, workers)
        low, high = runtime.stretch(2 * block + half, 2 * blocks, count)
        turned
        for k in range(first + low * step, first + high * step, step):
            body
end
return sums
""",
            **parts,
            zeros=self._zeros(),
            start=start,
            halves=quoted(halves, **own),
            numbers=quoted(numbers, **own),
            turned=quoted_block(turned, **own),
            k=self.plan.target,
            body=self.plan.loop.body,
            end=end,
            sums=returned_of([*self.plan.sums]),
        )
        return builder.function(self.worker_name, self._parameters())

    def _tape_of_worker(self) -> tuple[list[ast.stmt], list[ast.stmt]]:
        """Return what a worker does with its tape at its start and at its end."""
        if self.tape == "own":
            start, end = "tape = runtime.take_tape()\ntop = 0", "runtime.give_tape(tape)"
        elif self.has_tapes:
            start = "tape = runtime.tape_of(tapes, worker)\ntop = runtime.used(tape)"
            end = "runtime.set_used(tape, top)"
        else:
            start = end = ""
        parts = {"tapes": self.tapes, "worker": self.own["worker"]}
        return quoted_block(start, **parts), quoted_block(end, **parts)

    def guarded(self) -> ast.FunctionDef:
        """Return the worker that reports errors."""
        parameters = self._parameters()
        failed, sums = self._unlike("failed"), [*self.plan.sums]
        given: list[ast.stmt] = []
        call: ast.expr = call_of(self.worker_name, *names(parameters))
        if len(parameters) > _MOST_ARGUMENTS:
            packed, values = name(self._unlike("given")), tuple_of(names(parameters))
            given = quoted_block("packed = values", packed=packed, values=values)
            call = ast.Call(name(self.worker_name), [ast.Starred(packed, ast.Load())], [])
        run = "sums = call" if sums else "call"
        builder = Builder()
        builder.quote(
            """
zeros
failed = True
given
try:
    run
    failed = False
except Exception:
    pass
return (failed, *sums)
""",
            zeros=self._zeros(),
            failed=failed,
            given=given,
            run=quoted_block(run, sums=returned_of(sums), call=call),
            sums=sums,
        )
        return builder.function(self.guarded_name, parameters)

    def driver(self) -> ast.FunctionDef:
        """Return the function for all workers."""
        plan = self.plan
        roles = ("last", "failed", "together", "number", "low", "high", "has_failed")
        own = {**self.own, **{role: self._unlike(role) for role in roles}}
        parts = {sum_: self._unlike(f"{sum_}_parts") for sum_ in plan.sums}
        copies = {array: self._unlike(f"{array}_copies") for array in plan.private}
        results = {sum_: self._unlike(f"{sum_}_part") for sum_ in plan.sums}
        builder = Builder()
        builder.quote("count = len(range(first, last, step))", **own)
        self._start(builder, own)
        for sum_, kind in plan.sums.items():
            made = "parts = np.zeros(workers, kind)"
            builder.quote(made, parts=parts[sum_], kind=f"np.{kind}", **own)
        for array in plan.private:
            made = "copies = runtime.copies_of(x, workers)"
            builder.quote(made, copies=copies[array], x=array, **own)
        # the phase in which a worker failed, counted from 1
        builder.quote("failed = np.zeros(workers, np.int64)", **own)
        in_turn = "range(n - 1, -1, -1)" if self.tape == "pops" else "range(n)"
        builder.quote(
            """
for phase in phases_in_turn:
    for number in range(1 if together else workers):
        low, high = (0, workers) if together else (number, number + 1)
        for worker in parallel(low, high):
            run
            if has_failed:
                failed[worker] = phase + 1
            add
for worker in range(workers):
    if failed[worker]:
        again
        raise RuntimeError(message)
    total
""",
            **own,
            phases_in_turn=quoted(in_turn, n=self._phases),
            parallel=PARALLEL,
            run=self._run(own, copies, [*results.values()]),
            add=[
                statement
                for sum_, part in results.items()
                for statement in quoted_block(
                    "parts[worker] += part", parts=parts[sum_], part=part, **own
                )
            ],
            again=self._run_again(own),
            message=ast.Constant(_FAILED),
            total=[
                statement
                for sum_, found in parts.items()
                for statement in quoted_block("x += parts[worker]", x=sum_, parts=found, **own)
            ],
        )
        for array, ndim in plan.private.items():
            add = f"arrays.add_{ndim}_to_{ndim}" if ndim <= 3 else "arrays.add_to"
            copied = {"add": add, "x": array, "copies": copies[array]}
            builder.quote(
                "for worker in range(1, workers):\n    add(x, copies[worker - 1])", **copied, **own
            )
        if self.tape == "pushes":
            builder.quote("tape, top = runtime.push_workers(tape, top, workers)", **own)
        builder.result(returned_of(self._results()))
        parameters = [own["first"], own["last"], own["step"], *plan.given, *plan.sums]
        parameters += ["tape", "top"] if self.has_tapes else []
        return builder.function(self.driver_name, parameters)

    @property
    def _phases(self) -> int:
        """How many phases there are: two if iterations add to neighbours."""
        return 2 if self.plan.reach else 1

    def _arguments(self, own: Names, phase: ast.expr, copies: Names) -> list[ast.expr]:
        """Return the arguments of a worker in a phase, with copies in place of arrays."""
        worker, workers, _, _, first, step, count = names(self.own.values())
        given = [
            quoted("copies[worker - 1]", copies=copies[n], **own) if n in copies else name(n)
            for n in self.plan.given
        ]
        tapes = [name(self.tapes)] if self.has_tapes else []
        phases = ast.Constant(2 // self._phases)
        return [worker, workers, phase, phases, first, step, count, *given, *tapes]

    def _run(self, own: Names, copies: Names, results: list[str]) -> list[ast.stmt]:
        """Return the calls of a guarded worker: all but the first have copies of arrays."""
        targets = tuple_of(names([own["has_failed"], *results]))

        def call(copies: Names) -> list[ast.stmt]:
            arguments = self._arguments(own, name(own["phase"]), copies)
            made = call_of(self.guarded_name, *arguments)
            return quoted_block("targets = call", targets=targets, call=made)

        if not copies:
            return call({})
        branch = "if worker == 0:\n    one\nelse:\n    other"
        return quoted_block(branch, one=call({}), other=call(copies), **own)

    def _run_again(self, own: Names) -> list[ast.stmt]:
        """Return the call that raises the error of the first iteration that fails.

        It runs all of them in order, or those of the worker if they need its tape.
        """
        if not self.plan.is_repeatable:
            return []
        arguments = self._arguments(own, quoted("failed[worker] - 1", **own), {})
        if self.tape != "pops":
            arguments[:4] = map(ast.Constant, (0, 1, 0, 2))
        return quoted_block("call", call=call_of(self.worker_name, *arguments))

    def _results(self) -> list[str]:
        """Return what the function for all workers returns."""
        return [*self.plan.sums, *_RESULTS.get(self.tape, [])]

    def _start(self, builder: Builder, own: Names) -> None:
        """Add how many workers there are, and whether they may run at the same time."""
        plan = self.plan
        tests = [quoted("runtime.overlap(x, y)", x=one, y=other) for one, other in plan.overlaps]
        if plan.lowest is not None:
            lowest = "min(first, first + (count - 1) * step) < lowest"
            tests.append(quoted(lowest, lowest=-plan.lowest, **own))
        if self.tape == "pops":
            builder.quote("workers, top = runtime.pop_workers(tape, top)", **own)
        else:
            builder.quote("workers = runtime.workers_for(count)", **own)
        if plan.reach:
            blocks = "count < reach * runtime.blocks_of(count, workers)"
            tests.append(quoted(blocks, reach=2 * plan.reach, **own))
        builder.quote("together = True", **own)
        if tests:
            with builder.when(any_of(tests)):
                builder.quote("together = False" if self.tape == "pops" else "workers = 1", **own)
        if self.has_tapes:
            builder.quote("tapes = runtime.address_of(tape)", tapes=self.tapes)
        if self.tape == "pushes":  # makes them all
            builder.quote("runtime.tape_of(tapes, workers - 1)", tapes=self.tapes, **own)

    def call(self) -> list[ast.stmt]:
        """Return the statement that stands for the loop."""
        plan = self.plan
        tape = ["tape", "top"] if self.has_tapes else []
        arguments = [*plan.bounds, *names([*plan.given, *plan.sums, *tape])]
        call, results = call_of(self.driver_name, *arguments), self._results()
        template = "results = call" if results else "call"
        return quoted_block(template, results=returned_of(results), call=call)
