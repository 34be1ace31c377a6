"""What a trial will need of a device's memory, and what fits. Numbers in, numbers out."""
