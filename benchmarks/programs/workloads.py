"""All workloads by name, each declared once for the comparisons and the asv suites."""

from .cases import Workload
from .features import FEATURES
from .forward_mode import FORWARD
from .long_loops import LONG_LOOPS
from .losses import PROGRAMS
from .njit import NJIT_PROGRAMS

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (*PROGRAMS, *LONG_LOOPS, *FEATURES, *FORWARD, *NJIT_PROGRAMS)
}
