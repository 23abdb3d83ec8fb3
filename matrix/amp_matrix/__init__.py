"""Read what amp-probe measured, and choose a precision by it. Importing this imports no torch."""

from amp_matrix.version import __version__

__all__ = ["__version__"]
