"""Training: data, encoders, heads, losses and the loop. Imports torch; never the engine."""
