"""Random models, driven through everything that happens to a model, and compared with what PyTorch computes."""
