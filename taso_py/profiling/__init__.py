"""Profiles of models and results: time by operator, compared with the roofline."""
