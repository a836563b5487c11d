"""Shared by the asv suites: cases by their labels, and graphs recorded from them."""

from typing import Any

from benchmarks.programs.cases import Case
from benchmarks.programs.peers import Tapegrad
from benchmarks.programs.workloads import WORKLOADS

CASES = {
    case.label: case
    for workload in WORKLOADS.values()
    for case in (Case(workload, size) for size in workload.sizes)
}

SIDE = Tapegrad()


def labels(*names: str) -> list[str]:
    """The labels of every case of the named workloads or groups."""
    wanted = {*names}
    return [
        label for label, case in CASES.items() if wanted & {case.workload.name, case.workload.group}
    ]


def recorded(label: str) -> tuple[Any, list[Any]]:
    """The loss of a case, recorded once, and the tensors to differentiate it by."""
    case = CASES[label]
    tensors = SIDE.tensors(case)
    value = case.loss(SIDE.namespace())(*tensors)
    return value, [tensors[i] for i in case.wrt]
