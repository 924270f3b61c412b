"""Which process this is, by a name that tells a person where to look; and whether one of this machine is gone.

A lease of a process that was killed need not be waited for where everybody can see that it is dead. Anything that is
not certain counts as alive: then the lease expires by itself.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from functools import cache
from pathlib import Path

_NAME = re.compile(r".*@(?P<host>[^ ]+) pid (?P<pid>\d+)(?P<where>.*)", re.DOTALL)
_FIRST_NAMESPACE = "pid:[4026531836]"  # Linux: that of the machine itself


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


def this_process() -> str:
    """`ann@web3 pid 4711 of 1c0e9f3a`: whose, where, which, and of which start of the machine."""
    return _named(os.getpid())


@cache
def _named(pid: int) -> str:
    return f"{user()}@{socket.gethostname()} pid {pid}{_namespace(pid)}"


def here() -> str:
    """Where pids and ports count: this machine, this start of it."""
    return f"{socket.gethostname()}{_namespace(os.getpid())}"


def gone(process: str) -> bool:
    """Whether this process is certainly dead: it was here, and here is nobody of that number."""
    named = _NAME.fullmatch(process)
    if named is None or named["host"] != socket.gethostname() or named["where"] != _namespace(os.getpid()):
        return False
    try:
        os.kill(int(named["pid"]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False  # somebody else's, and alive
    return False


@cache
def _namespace(_: int) -> str:
    """Where this process's pid counts: this start of this machine, and in a container its process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        name = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
    return f" of {boot}" + ("" if name == _FIRST_NAMESPACE else f" in {name}")
