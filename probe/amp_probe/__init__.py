"""Run real operators and training steps in every precision, and write down what happened."""

from amp_matrix.version import __version__

__all__ = ["__version__"]
