"""Building, running, comparing and timing PyTorch modules, and the models to try them on."""
