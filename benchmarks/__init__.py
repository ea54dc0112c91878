"""Measurements of a running stack: JSON out, ratios within one run, medians and spread."""
