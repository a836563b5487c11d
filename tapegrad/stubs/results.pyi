"""Results of decompositions: named tuples of NumPy, of tensors."""

from typing import NamedTuple

from tapegrad.eager.tensor import Tensor

class EigResult(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor

class EighResult(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor

class QRResult(NamedTuple):
    Q: Tensor
    R: Tensor

class SlogdetResult(NamedTuple):
    sign: Tensor
    logabsdet: Tensor
