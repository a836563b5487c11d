"""The tape: records of computations, and the compiled reverse sweep over them."""
