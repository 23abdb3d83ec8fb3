"""Read what amp-probe measured, and choose a precision by it. Importing this imports no torch."""

# The function must be bound here at once: importing the module of the same name later would bind the module instead.
from amp_matrix.choose import ChoiceError, EvidenceWarning, choose
from amp_matrix.plan import Plan
from amp_matrix.version import __version__

__all__ = ["ChoiceError", "EvidenceWarning", "Plan", "__version__", "choose"]
