"""Tests of job arrays and of the database of a job."""
