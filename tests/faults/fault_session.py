"""A session without torch: a payload names one of the functions here and its argument. Runs in workers only."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from amp_probe.worker import Reply

Announce = Callable[[bytes], None]


class Odd(BaseException):
    """Not an Exception."""


class Mute(Exception):
    """An exception that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Session:
    """Keeps a poisoned state and a flag that drifts, both set by the functions below."""

    def __init__(self, canary: str) -> None:
        self.broken = canary
        self.flag = "clean"
        self.canaries = 0

    def run(self, payload: bytes, announce: Announce) -> Reply:
        name, argument = msgspec.msgpack.decode(payload)
        suspect = name.startswith("suspect_")
        result = globals()[name](self, announce, argument)
        if isinstance(result, Reply):
            return result
        return Reply(msgspec.msgpack.encode(result), suspect=suspect)

    def canary(self) -> str:
        self.canaries += 1
        if self.broken == "hang":
            time.sleep(3600)
        return self.broken

    def fingerprint(self) -> dict[str, str]:
        return {"flag": self.flag}


def open_session(argument: bytes) -> Session:
    return Session(argument.decode())


def open_broken(argument: bytes) -> Session:
    raise ImportError("no module named anything")


def open_dead(argument: bytes) -> Session:
    os.abort()


def echo(session: Session, announce: Announce, argument: Any) -> Any:
    return argument


def pid(session: Session, announce: Announce, argument: Any) -> int:
    return os.getpid()


def canaries(session: Session, announce: Announce, argument: Any) -> int:
    return session.canaries


def sleep(session: Session, announce: Announce, seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def look(session: Session, announce: Announce, argument: Any) -> dict[str, Any]:
    """What a job can see of where it runs."""
    return {
        "cwd": os.getcwd(),
        "path": sys.path,
        "environ": dict(os.environ),
        "modules": list(sys.modules),
        "stdin": sys.stdin.read(),
        "session": os.getsid(0) == os.getpid(),
        "file": sys.modules["amp_probe"].__file__,
    }


def find(session: Session, announce: Announce, module: str) -> str:
    try:
        __import__(module)
    except ImportError:
        return "absent"
    return "found"


def announce_then(session: Session, announce: Announce, argument: Any) -> Any:
    name, more = argument
    announce(b"one")
    announce(b"two")
    return globals()[name](session, announce, more)


def segfault(session: Session, announce: Announce, argument: Any) -> None:
    print("assertion failed: a is b", file=sys.stderr)
    ctypes.string_at(0)


def abort(session: Session, announce: Announce, argument: Any) -> None:
    os.abort()


def illegal(session: Session, announce: Announce, argument: Any) -> None:
    os.kill(os.getpid(), signal.SIGILL)
    time.sleep(5)


def exit_now(session: Session, announce: Announce, code: int) -> None:
    os._exit(code)


def sys_exit(session: Session, announce: Announce, argument: Any) -> None:
    sys.exit(0)


def interrupt(session: Session, announce: Announce, argument: Any) -> None:
    raise KeyboardInterrupt


def odd(session: Session, announce: Announce, argument: Any) -> None:
    raise Odd("odd")


def mute(session: Session, announce: Announce, argument: Any) -> None:
    raise Mute


def unserializable(session: Session, announce: Announce, argument: Any) -> Any:
    return Reply(lambda: 1, suspect=False)  # type: ignore[arg-type]


def no_reply(session: Session, announce: Announce, argument: Any) -> Any:
    return Reply("text", suspect=False)  # type: ignore[arg-type]


def huge(session: Session, announce: Announce, argument: Any) -> Any:
    return Reply(b"x" * (65 << 20), suspect=False)


def large(session: Session, announce: Announce, size: int) -> Any:
    return Reply(b"x" * size, suspect=False)


def loop(session: Session, announce: Announce, argument: Any) -> None:
    while True:
        pass


def hold_gil(session: Session, announce: Announce, argument: Any) -> None:
    ctypes.PyDLL(None).sleep(3600)


def block_signals(session: Session, announce: Announce, argument: Any) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    ctypes.CDLL(None).pause()


def close_all(session: Session, announce: Announce, argument: Any) -> str:
    os.closerange(0, 256)
    return "closed"


def scribble(session: Session, announce: Announce, argument: Any) -> str:
    """Write to every socket there is, as a native fault or a careless probe would."""
    for fd in range(3, 64):
        try:
            os.write(fd, b"scribble" * 100)
        except OSError:
            continue
    return "scribbled"


def scribble_little(session: Session, announce: Announce, argument: Any) -> str:
    for fd in range(3, 64):
        try:
            socket.socket(fileno=os.dup(fd)).send(b"\xa9am")
        except OSError:
            continue
    return "scribbled"


def steal(session: Session, announce: Announce, argument: Any) -> str:
    """Read what the main process sent to the worker."""
    for fd in range(3, 64):
        try:
            socket.socket(fileno=os.dup(fd)).recv(1 << 16, socket.MSG_DONTWAIT)
        except OSError:
            continue
    return "stolen"


def print_lots(session: Session, announce: Announce, megabytes: int) -> int:
    block = b"x" * (1 << 20)
    for _ in range(megabytes):
        os.write(1, block)
    return megabytes


def allocate(session: Session, announce: Announce, argument: Any) -> None:
    kept = []
    while True:
        kept.append(bytearray(16 << 20))


def allocate_shared(session: Session, announce: Announce, argument: Any) -> None:
    """What RLIMIT_DATA does not count."""
    import mmap

    kept = []
    while True:
        kept.append(mmap.mmap(-1, 16 << 20))
        kept[-1].write(b"x" * (16 << 20))
        time.sleep(0.005)


def child(session: Session, announce: Announce, argument: Any) -> int:
    return subprocess.Popen(["sleep", "3600"]).pid


def escape(session: Session, announce: Announce, argument: Any) -> int:
    """A child in a session of its own."""
    return subprocess.Popen(["sleep", "3600"], start_new_session=True).pid


def escape_then_die(session: Session, announce: Announce, argument: Any) -> None:
    subprocess.Popen(["sh", "-c", "setsid sleep 3600 & setsid sleep 3600 & wait"], start_new_session=True)
    os._exit(3)


def fork(session: Session, announce: Announce, argument: Any) -> str:
    """Both the worker and its copy come back from here."""
    copied = os.fork() == 0
    if copied:
        time.sleep(0.05)
        announce(b"from the copy")
    return "copy" if copied else "worker"


def fork_and_raise(session: Session, announce: Announce, argument: Any) -> str:
    if os.fork() == 0:
        raise Odd("in the copy")
    os.wait()
    return "worker"


def leave_thread(session: Session, announce: Announce, argument: Any) -> None:
    threading.Thread(target=time.sleep, args=(3600,)).start()


def leave_spinning(session: Session, announce: Announce, argument: Any) -> None:
    def spin() -> None:
        while True:
            pass

    threading.Thread(target=spin, daemon=True).start()


def joined_threads(session: Session, announce: Announce, argument: Any) -> None:
    threads = [threading.Thread(target=time.sleep, args=(0.001,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def leave_environ(session: Session, announce: Announce, argument: Any) -> None:
    os.environ["LEFT_BEHIND"] = "1"


def leave_cwd(session: Session, announce: Announce, argument: Any) -> None:
    os.chdir("/")


def leave_flag(session: Session, announce: Announce, argument: Any) -> None:
    session.flag = "changed"


def leave_timer(session: Session, announce: Announce, argument: Any) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.2)


def suspect_fine(session: Session, announce: Announce, argument: Any) -> str:
    return "suspect"


def suspect_poison(session: Session, announce: Announce, argument: Any) -> str:
    session.broken = "products are wrong"
    return "poisoned"


def quiet_poison(session: Session, announce: Announce, argument: Any) -> str:
    session.broken = "products are wrong"
    return "poisoned"


def die_later(session: Session, announce: Announce, argument: Any) -> str:
    """Answer, and die while the state is looked at."""
    session.fingerprint = lambda: os.abort()  # type: ignore[method-assign]
    return "answered"


def kill_keeper(session: Session, announce: Announce, argument: Any) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(5)


def flood(session: Session, announce: Announce, argument: Any) -> None:
    while True:
        announce(b"x" * (1 << 20))


def suspect_hang(session: Session, announce: Announce, argument: Any) -> str:
    """The canary that follows never returns."""
    session.broken = "hang"
    return "hanging"


def open_flagged(argument: bytes) -> Session:
    """A session on a device that is lost once a file is there."""
    return Session("the device does not answer" if os.path.exists(argument) else "")


def lose(session: Session, announce: Announce, path: str) -> None:
    open(path, "x").close()
    os.abort()


def escape_and(session: Session, announce: Announce, name: str) -> Any:
    """A child in a session of its own, then a hang."""
    escape(session, announce, None)
    return globals()[name](session, announce, None)


def hold_gil_unwatched(session: Session, announce: Announce, argument: Any) -> None:
    """Hang, and take back the wish to die with the parent."""
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    hold_gil(session, announce, argument)
