"""Ops on tensors: what is computed and recorded when a program runs."""
