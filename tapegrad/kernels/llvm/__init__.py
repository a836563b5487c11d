"""How numba compiles generated code and that of the package: fewer passes, shorter code for LLVM.

Such code is long and plain: loops over ranges, numbers, and single elements of arrays. numba's
own code for an element is 30 to 70 instructions, most of which LLVM removes again, and for each
operation it searches the implementation anew. Here such statements become the few instructions
that are left in the end, and everything else is left to numba.
"""
