"""The fingerprint of now: what decides whether a measurement still holds. Importing this imports no torch.

`capture` runs in a worker and in the process that calls `choose`, and gives the same identity in both.
"""

from amp_matrix.environment.capture import capture
from amp_matrix.environment.compare import SCOPED, applies, differences, identity_key, unmeasurable
from amp_matrix.environment.errors import CaptureError

__all__ = ["SCOPED", "CaptureError", "applies", "capture", "differences", "identity_key", "unmeasurable"]
