"""What differs between cpu, cuda, mps and xpu. Everything else is the same code on every device."""
