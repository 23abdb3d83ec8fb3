"""Runs what a probe returns, stage by stage, and judges it."""
