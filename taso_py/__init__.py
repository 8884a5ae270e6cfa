"""taso-py: a superoptimizer for PyTorch models."""
