"""Surveys on a terminal: what to use first, then why, then the matrix in the width that there is, then what failed."""

from __future__ import annotations

from amp_matrix.render.terminal.page import Page, matrix

__all__ = ["Page", "matrix"]
