"""Compare the derivatives of many random programs with differences, in several processes.

Most programs are judged by running the generated code in Python, which is fast; every so many are
compiled. What is wrong is made smaller, compiled, and printed.
"""

import argparse
import collections
import dataclasses
import faulthandler
import functools
import gc
import os
import pathlib
import re
import resource
import shutil
import sys
import tempfile
import time
import warnings

SETTINGS = {
    "NUMBA_OPT": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # new memory holds large numbers, not what stood there before
    "MALLOC_PERTURB_": "128",
}
BAD = "wrong", "failed", "crashed", "timeout", "invalid"


def parsed():
    parser = argparse.ArgumentParser(
        prog="python -m tests.transform.random_programs", description=__doc__
    )
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; then count up")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument(
        "--compiled", type=int, default=20, help="of so many programs one is compiled; 0: none"
    )
    parser.add_argument(
        "--typed", type=int, default=4, help="of so many that Python runs, numba finds types in one"
    )
    parser.add_argument("--forward", type=int, default=2, help="of so many, one has forward mode")
    parser.add_argument("--second", type=int, default=12, help="of so many, one has second order")
    parser.add_argument(
        "--cross", type=int, default=3, help="of so many that are not smooth, one compares modes"
    )
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one program")
    parser.add_argument("--shrink", type=int, default=10, help="make so many failures smaller")
    parser.add_argument("--shrink-seconds", type=float, default=60.0, help="for each of them")
    parser.add_argument("--show", action="store_true", help="print the program of the seed, end")
    return parser.parse_args()


def in_fresh_environment():
    """Start again with settings that have to be there from the beginning."""
    if os.environ.get("RANDOM_PROGRAMS") is None:
        given = {name: value for name, value in SETTINGS.items() if name not in os.environ}
        place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        folder = tempfile.mkdtemp(prefix="random_programs", dir=place)
        os.environ.update(given, RANDOM_PROGRAMS=folder, TAPEGRAD_CACHE_DIR=folder)
        arguments = ["-m", "tests.transform.random_programs", *sys.argv[1:]]
        os.execv(sys.executable, [sys.executable, *arguments])
    return pathlib.Path(os.environ["RANDOM_PROGRAMS"])


@dataclasses.dataclass
class Result:
    outcome: str
    text: str
    shapes: frozenset
    compiled: bool


def judge(options, seed):
    """What becomes of the program of a seed."""
    from .comparison import outcome_of
    from .writer import program_of

    program = program_of(seed)
    compiled = bool(options.compiled) and seed % options.compiled == 0
    outcome, text = outcome_of(
        program,
        second=bool(options.second) and seed % options.second == 1,
        compiled=compiled,
        forward=bool(options.forward) and seed % options.forward == 0,
        cross=bool(options.cross) and seed % options.cross == 0,
        typed=bool(options.typed) and seed % options.typed == 1,
    )
    return Result(outcome, text, program.shapes, compiled)


def judge_text(program):
    """Outcomes of a program: run by Python, or compiled."""
    from .comparison import outcome_of

    program, compiled = program
    outcome, text = outcome_of(program, compiled=compiled)
    return Result(outcome, text, program.shapes, compiled)


def reason(text):
    """A refusal without the names of the program."""
    first = text.strip().splitlines()[0] if text.strip() else "?"
    first = re.sub(r"\b([a-z])\d+\b", r"\1_", first)
    return re.sub(r"\b\d+\b", "N", first)[:150]


def kind(outcome, text):
    """How a failure is told from others."""
    if outcome == "failed":
        lines = text.strip().splitlines()
        return f"{outcome}: {reason(lines[-1])}"
    return (
        f"{outcome}: {reason(text)}"
        if outcome != "wrong"
        else "wrong: " + text.split(" of ")[0][:40]
    )


def warm(programs):
    """Compile what many programs need, before there are other processes."""
    from .comparison import outcome_of
    from .writer import program_of

    for seed in range(-1, -1 - programs, -1):
        outcome_of(program_of(seed), second=seed % 12 == 1, compiled=False)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 100)  # types and trees come and go in large numbers


class Tally:
    """What became of all programs."""

    def __init__(self):
        self.outcomes = collections.Counter()
        self.reasons = collections.Counter()
        self.examples = {}
        self.shapes = collections.Counter()
        self.compiled = 0
        self.failures = collections.defaultdict(list)
        self.start = time.monotonic()

    def add(self, seed, result):
        self.outcomes[result.outcome] += 1
        self.compiled += getattr(result, "compiled", False)
        if result.outcome == "refused":
            why = reason(result.text)
            self.reasons[why] += 1
            self.examples.setdefault(why, seed)
        if result.outcome in ("right", "refused", "wrong"):
            self.shapes.update(result.shapes)
        if result.outcome == "disagree":
            print(f"seed {seed}: disagree: {result.text}", flush=True)
        if result.outcome in BAD:
            self.failures[kind(result.outcome, result.text)].append(seed)
            print(f"seed {seed}: {result.outcome}: {result.text.strip()[-700:]}", flush=True)

    def judged(self):
        return sum(self.outcomes[o] for o in ("right", "refused", "wrong", "failed", "crashed"))

    def show(self):
        seconds = time.monotonic() - self.start
        total = sum(self.outcomes.values())
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        work = used.ru_utime + used.ru_stime
        print(f"\n{total} programs, {self.compiled} of them compiled, in {seconds:.0f} seconds")
        print(f"{total / seconds:.2f} a second; {total / max(work, 1e-9):.2f} a second of a core")
        for outcome, count in self.outcomes.most_common():
            print(f"{count:8} {outcome:10} {100 * count / max(total, 1):6.2f} %")
        share = 100 * self.outcomes["refused"] / max(self.judged(), 1)
        print(f"refused: {share:.2f} % of the {self.judged()} that can be judged")
        for why, count in self.reasons.most_common():
            print(f"{count:8} {why}  (seed {self.examples[why]})")
        print("\nin judged programs:")
        for shape, count in sorted(self.shapes.items(), key=lambda item: -item[1]):
            print(f"{count:8} {shape}")
        for name, seeds in self.failures.items():
            print(f"{len(seeds):8} {name}: seeds {seeds[:12]}")


def smaller(options, compiled, wanted, program):
    """A small program that is wrong in the same way, found in this process."""
    from .comparison import outcome_of
    from .shrink import shrunk

    def fails(candidate):
        outcome, text = outcome_of(candidate, compiled=compiled, sure=False)
        return outcome in BAD and (outcome == wanted == "wrong" or kind(outcome, text) == wanted)

    return shrunk(program, fails, options.shrink_seconds)


def smallest(options, folder, seed):
    """The failing program of a seed, made smaller, and what it does."""
    from .processes import Lost, isolated
    from .shrink import shrunk
    from .writer import program_of

    program = program_of(seed)
    for compiled in (False, True):
        first = isolated(judge_text, (program, compiled), folder, options.timeout)
        if first.outcome in BAD:
            break
    else:
        return program, "does not fail alone: " + first.outcome
    if not isinstance(first, Lost):
        wanted = "wrong" if first.outcome == "wrong" else kind(first.outcome, first.text)
        work = functools.partial(smaller, options, compiled, wanted)
        limit = options.shrink_seconds + options.timeout
        found = isolated(work, program, folder, limit)
        program = program if isinstance(found, Lost) else found
    else:

        def fails(candidate):
            found = isolated(judge_text, (candidate, compiled), folder, options.timeout)
            return found.outcome == first.outcome

        program = shrunk(program, fails, options.shrink_seconds)
    shown = []
    for compiled in (False, True):
        found = isolated(judge_text, (program, compiled), folder, options.timeout)
        how = "compiled" if compiled else "run by Python"
        shown.append(f"{how}: {found.outcome}: {found.text.strip()[-600:]}")
    return program, "\n".join(shown)


def main():
    options = parsed()
    if options.show:
        from .writer import program_of

        print(program_of(options.seed))
        return
    folder = in_fresh_environment()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    try:
        from tapegrad.transform.errors import SlowerCodeWarning, UnconfirmedWarning

        from .processes import results

        for doubt in (SlowerCodeWarning, UnconfirmedWarning):
            warnings.simplefilter("error", doubt)  # so that a program that is doubted has failed
        warm(programs=max(24, min(options.programs // 50, 240)))
        tally = Tally()
        end = time.monotonic() + options.seconds
        seeds = range(options.seed, options.seed + options.programs)
        work = functools.partial(judge, options)
        for seed, result in results(work, seeds, folder, options.processes, options.timeout):
            tally.add(seed, result)
            if time.monotonic() > end:
                break
            if sum(tally.outcomes.values()) % 1000 == 0:
                print(dict(tally.outcomes), flush=True)
        tally.show()
        chosen = [seeds[k] for k in range(3) for seeds in tally.failures.values() if k < len(seeds)]
        for seed in chosen[: options.shrink]:
            program, text = smallest(options, folder, seed)
            print(f"\n==== seed {seed}\n{program}\n{text}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(bool(tally.failures))


if __name__ == "__main__":
    main()
