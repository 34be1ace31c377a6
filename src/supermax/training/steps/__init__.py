"""Step executors: eager, as CUDA graphs, compiled; batches and the schedule of an epoch."""
