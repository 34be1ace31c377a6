"""Data: read, validated once, split, tokenized."""
