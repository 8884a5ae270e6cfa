"""Cost estimates of graphs: the joint choice of kernels and memory formats, from measured latencies."""
