from tapegrad import autograd
from tapegrad.autograd import no_grad, enable_grad
from tapegrad.dispatch import apply_op
from tapegrad.tensor import Tensor, wrap
from tapegrad.eager import function_of
from tapegrad.ops import reduction
from tapegrad.ops.op import TABLE
import numpy as np

Tensor._apply_op = staticmethod(apply_op)
for _n, _op in TABLE.items():
    globals()[_n], _r = function_of(_op)
for _n, _f in dict(
    add="add", sub="subtract", mul="multiply", truediv="divide", pow="power"
).items():
    setattr(Tensor, f"__{_n}__", globals()[_f])
    setattr(Tensor, f"__r{_n}__", function_of(TABLE[_f])[1])
Tensor.sum = globals()["sum"]
Tensor.__neg__ = globals()["negative"]


def tensor(data, dtype=None, requires_grad=False):
    t = wrap(np.array(data, dtype=dtype))
    if requires_grad:
        t.requires_grad_()
    return t
