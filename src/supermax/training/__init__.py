"""Training: data, encoders, heads, losses, one visible loop. Imports torch; never the engine."""
