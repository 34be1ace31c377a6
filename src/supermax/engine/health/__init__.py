"""GPUs and machines on which trials fail that succeed elsewhere."""
