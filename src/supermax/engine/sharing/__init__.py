"""Several runs on one study: leases, and trials of runs that are gone."""
