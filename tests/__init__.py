"""Tests. The folders are those of the package."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
