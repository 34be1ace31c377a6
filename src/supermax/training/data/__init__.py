"""Data: read, validated once, split, tokenised."""
