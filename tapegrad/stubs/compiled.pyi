"""What is imported on first use, since it imports numba."""

from tapegrad.replay.function import jit as jit
from tapegrad.transform.checkpointing import checkpointed as checkpointed
from tapegrad.transform.errors import RoundedWarning as RoundedWarning
from tapegrad.transform.errors import SerialLoopWarning as SerialLoopWarning
from tapegrad.transform.errors import SlowerCodeWarning as SlowerCodeWarning
from tapegrad.transform.errors import TransformError as TransformError
from tapegrad.transform.errors import UnconfirmedWarning as UnconfirmedWarning
from tapegrad.transform.errors import VerificationError as VerificationError
from tapegrad.transform.function import njit as njit
from tapegrad.transform.functions import stop_gradient as stop_gradient
from tapegrad.transform.tape_memory.limit import set_tape_limit as set_tape_limit
