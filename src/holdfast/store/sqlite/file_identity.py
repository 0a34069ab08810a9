"""The identity of a file, asked for without its times.

`stat` marks a file's times as seen. Since Linux 6.13 the next write has to record a new time, which makes a commit a
fifth slower. Linux has `statx`, which reads only what is asked for. Python has no function for it.

What can fail: the system has no `statx`, or a sandbox forbids it. Then `stat` answers.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import Any

# https://man7.org/linux/man-pages/man2/statx.2.html
AT_FDCWD = -100  # a relative name starts at the current directory
STATX_INO = 0x100
_Answer = ctypes.c_char * 256
_fields = struct.Struct("=I28xQ96xII").unpack_from  # the fields that are given; inode; device: major and minor number


def identity_of(name: str) -> tuple[int, int]:
    """Return the inode and the device of the file that has this name now.

    Raises:
        OSError: as for `os.stat`.
    """
    if _statx is not None:
        answer = _Answer()
        if not _statx(AT_FDCWD, os.fsencode(name), 0, STATX_INO, answer):
            given, inode, major, minor = _fields(answer)
            if given & STATX_INO:
                return inode, os.makedev(major, minor)
    return identity(os.stat(name))  # noqa: PTH116 - a Path takes as long as the call


def identity(status: os.stat_result) -> tuple[int, int]:
    """Return the inode and the device of a file whose status is known."""
    return status.st_ino, status.st_dev


def _found() -> Any:
    if sys.platform != "linux":
        return None
    try:
        call = ctypes.CDLL(None).statx
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p]
    return call


_statx = _found()
