"""Encoders, tokenizers, heads and the four models made of them."""
