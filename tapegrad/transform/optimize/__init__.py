"""Passes that make generated code faster.

Derivatives are generated, and verified, as loops with one iteration after the other. The passes
(`passes`) change copies of these functions. The largest concerns inner loops: compilers do not
vectorize most of them, since they end in sums, add to neighbouring elements, call functions of the
C library, or may raise errors. Where the iterations are proved independent, the loop is written
again (`blocked_loops`): the iterations of a block compute everything, with functions that vectorize
(`tapegrad.transform.vector_math`), and put what they write aside (`iteration`); then it is written,
one array after the other (`loop_code`). An iteration that would raise an error is found before
anything is written, and its block runs in order.
"""
