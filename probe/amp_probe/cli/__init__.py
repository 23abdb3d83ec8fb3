"""The command line: one file a command, which parses, calls, prints and gives an exit code."""
