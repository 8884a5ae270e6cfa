"""Engines: where a graph runs. PyTorch itself, CUDA graphs, the forms of Inductor, ONNX Runtime, OpenVINO, TensorRT.

A module an engine, one table (:mod:`taso_py.engines.table`). An engine says whether this machine has it, builds a
program into a module that runs there, and names the prices by which the search chooses graphs for it.

Invariant: a module that an engine built takes the arguments of the original and returns the tree of its results, which
are the caller's: no later call writes to them.
"""
