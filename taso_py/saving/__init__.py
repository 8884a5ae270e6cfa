"""Saved results: the folder, its files, and loading them again."""
