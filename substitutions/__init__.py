"""The proved substitutions: generated ``*.rules`` text and its manifest, as package data; no code."""
