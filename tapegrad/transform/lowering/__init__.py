"""Lowering of the normal form: every operation gets its rule."""
