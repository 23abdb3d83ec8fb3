"""What goes wrong in a capture."""


class CaptureError(RuntimeError):
    """What identifies the device cannot be known from here; the message says why, in one line."""
