"""Pipelines: objects that run several models. Which modules take the time, and optimized forms in their places."""
