"""Correctness checks: outputs against float64, each rule where it was applied, other sizes, preserved state."""
