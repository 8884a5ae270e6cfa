"""Fuzzer: random models are imported, rewritten, planned and run, and compared with PyTorch's results."""
