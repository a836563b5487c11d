"""Versions of generated functions that run faster: loops in blocks, for vector instructions.

Derivatives are generated, and verified, as loops with one iteration after the other. Compilers do
not vectorize most of them: they end in sums, they add to neighbouring elements, they call functions
of the C library, or they may raise errors. Where the iterations of an inner loop are proved
independent, this package writes the loop again (`module`): the iterations of a block compute
everything, with functions that vectorize (`tapegrad.transform.vector_math`), and put what they
write aside (`iteration`); then it is written, one array after the other (`loop_code`). An iteration
that would raise an error is found before anything is written, and its block runs in order.

Besides, loops reuse the arrays that they make in every iteration (`reuse`).
"""
