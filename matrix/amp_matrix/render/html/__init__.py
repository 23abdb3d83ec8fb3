"""Surveys as one HTML page that loads nothing: its own style and script, allowed by hash under a strict policy."""

from __future__ import annotations

from amp_matrix.render.html.page import render

__all__ = ["render"]
