"""Engines that run graphs: PyTorch itself, CUDA graphs, the variants of Inductor, ONNX Runtime, OpenVINO, TensorRT.

There is one module per engine, and a table of them (:mod:`taso_py.engines.table`). An engine knows whether it is
available on this machine, builds a program into a module that runs in it, and names its prices, the set of latencies
that a search for it uses.

Invariant: a module built by an engine takes the original's arguments and returns results in the same structure; they
belong to the caller, and no later call writes to them.
"""
