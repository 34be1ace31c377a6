"""Results of a study: records, DataFrames, report and MLflow tracking."""
