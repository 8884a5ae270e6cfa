"""Profiles of models and results: time by operator, beside the roofline."""
