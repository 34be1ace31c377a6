"""Crash-proof execution of any Optuna objective: a process per trial, one coordinator, a ledger
on disk.

Never imports torch and never writes to the terminal.
"""
