"""Several entry points of one model, such as prefill and decode, optimized together."""
