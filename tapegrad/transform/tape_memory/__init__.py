"""The memory of the tape on which compiled gradients keep values between forward and reverse.

A tape is one growing array of float64. Integers and booleans are kept as raw bits, arrays by
reference.

- ``limit``: how much memory a tape may use;
- ``buffer``: its array, and the block of words that manages it;
- ``references``: references to arrays on the tape;
- ``growth``: making it larger, within the limit;
- ``rows``: parts of it as arrays.
"""
