"""What every test runs under."""

from hypothesis import settings

settings.register_profile("plain", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("plain")
