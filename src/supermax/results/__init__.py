"""Results of a study: records, DataFrames, report, tracking and notifications."""
