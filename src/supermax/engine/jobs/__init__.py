"""One claimed trial: its attempts, its ledger, what follows a fault, and its end."""
