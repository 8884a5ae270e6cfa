"""Evaluation of the finalists: races, whether a speed-up can be, and which one wins."""
