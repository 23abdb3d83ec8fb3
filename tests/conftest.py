"""What every test runs under."""

import signal

from hypothesis import settings

settings.register_profile("plain", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("plain")

# Started in the background, a shell's children ignore Ctrl-C, and so would every process that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
