"""Latencies of tiles: measuring them on the user's device, remembering them, and bounding them from below."""
