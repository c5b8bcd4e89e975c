"""The edge: the only code that knows disk, processes, GPUs and the network. It decides nothing."""
