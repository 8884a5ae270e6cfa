"""Saved results: writing them to a folder, and loading them again."""
