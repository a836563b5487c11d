"""Fingerprints of functions, and the cache of machine code."""
