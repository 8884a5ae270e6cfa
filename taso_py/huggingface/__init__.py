"""The export backend ``taso`` of transformers: models that generate, exported, optimized, saved and run there.

Import :mod:`taso_py.huggingface.exporter` to register it. Nothing else of taso-py imports transformers.
"""
