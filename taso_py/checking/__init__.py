"""Checks of correctness: outputs against float64, rules where they were applied, other sizes, state put back."""
