"""Any Optuna objective, crash-proof: a process per trial, one coordinator, a folder as ledger.

Never imports torch and never writes to the terminal.
"""
