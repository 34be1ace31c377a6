"""Estimates of the memory of a trial, and plans that fit a device. Pure, but for devices."""
