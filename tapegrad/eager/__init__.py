"""Ops on tensors: computation and recording."""
