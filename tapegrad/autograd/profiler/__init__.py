"""A profiler with PyTorch's names: calls, time and memory of every op, forward and backward.

While a profile runs, the functions of ops have code that times them (`tapegrad.probes`), and the
compiled sweep notes when each record is done.
"""

from tapegrad.autograd.profiler.averages import EventList as EventList
from tapegrad.autograd.profiler.averages import FunctionEventAvg as FunctionEventAvg
from tapegrad.autograd.profiler.events import FunctionEvent as FunctionEvent
from tapegrad.autograd.profiler.profile import profile as profile
from tapegrad.autograd.profiler.profile import record_function as record_function
