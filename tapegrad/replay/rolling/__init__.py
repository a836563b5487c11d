"""Loops of Python are recorded step by step, and become loops again."""
