"""`python -m supermax` is the command line."""

from supermax.cli import main

main()
