"""Derivatives that check themselves when they are called for the first time."""
