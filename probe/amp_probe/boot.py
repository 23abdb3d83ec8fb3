"""The file that a worker process starts as: `python boot.py FOLDERS ROLE FD PARENT MODULE...`.

Started by its path and not with `-m`, so that the current directory is never on sys.path (Python 3.10 has no `-P`).
FOLDERS are those that the main process imports from: what only a changed sys.path let it find is found here too.
Nothing but sys and os is imported until the path is right.
"""

import os
import sys


def _boot() -> None:
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this package's own folder: its modules would hide others of the same name
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if own not in sys.path:
        sys.path.insert(0, own)
    sys.path += [folder for folder in sys.argv[1].split(os.pathsep) if folder not in sys.path]
    role, fd, parent, modules = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]
    if role == "zygote":
        from amp_probe import zygote

        zygote.main(fd, parent, modules)
    from amp_probe import worker

    worker.main(fd, parent, modules)


if __name__ == "__main__":
    _boot()
