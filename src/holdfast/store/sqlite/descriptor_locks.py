"""Descriptor locks: keeps SQLite's locks when other code of the process closes the same file.

SQLite locks bytes of its shared memory for each read, commit and checkpoint, with POSIX locks. They belong to the
process. If any code of the process closes a descriptor of that file, or unlocks the same byte, the kernel drops them.
A second SQLite library does both: Python's `sqlite3` is one. Then two programs may write to the log at once.

Linux has locks that belong to a descriptor (`F_OFD_SETLK`). They protect the same bytes from the same programs, and
only their owner can drop them. SQLite has no option for them, but it lets a program replace its calls of the system
(`xSetSystemCall`). This module replaces its `fcntl` by a few machine instructions, which ask for a descriptor lock
instead of a POSIX lock and then jump to the `fcntl` that was there before. Locks on the database itself stay as they
are: SQLite shares those between the descriptors of a process, and `database_files` protects them.

The replacement cannot be a Python function: a signal handler may raise an exception in it, and SQLite would take the
garbage that it returns for a lock.

What can fail:

- The system is not Linux on x86-64 or AArch64, or forbids new executable memory: SQLite keeps its POSIX locks.
- A connection of the same library was opened before: its locks would never be released. The next store tries again.
- A forked child inherits a connection with its descriptor, so that parent and child would own the same locks: the child
  opens and maps the file again, under the same number and addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import struct
import sys
import threading
from pathlib import Path

import apsw

# Arguments of `fcntl`: descriptor, command, address of a `struct flock`. The commands F_GETLK, F_SETLK, F_SETLKW are 5
# to 7, and each F_OFD_… is 31 more. In the structure, the start of the region is at 8, and the process id, which must
# be 0, is at 24. SQLite's lock bytes are below 2^30 in the shared memory and above it in the database.
X86_64 = bytes.fromhex(
    "f30f1efa"  # ....... endbr64
    "8d46fb"  # ......... lea eax, [rsi - 5]
    "83f802"  # ......... cmp eax, 2
    "7714"  # ........... ja pass                   not a lock
    "488b4208"  # ....... mov rax, [rdx + 8]
    "48c1e81e"  # ....... shr rax, 30
    "750a"  # ........... jnz pass                  in the database
    "c7421800000000"  # . mov dword [rdx + 24], 0
    "83c61f"  # ......... add esi, 31
    "48b8"  # ........... pass: mov rax, the address that follows
)
X86_64_END = bytes.fromhex("ffe0")  # jmp rax
AARCH64 = bytes.fromhex(
    "28140051"  # sub w8, w1, #5
    "1f090071"  # cmp w8, #2
    "c8000054"  # b.hi pass                         not a lock
    "480440f9"  # ldr x8, [x2, #8]
    "08fd5ed3"  # lsr x8, x8, #30
    "680000b5"  # cbnz x8, pass                     in the database
    "5f1800b9"  # str wzr, [x2, #24]
    "217c0011"  # add w1, w1, #31
    "50000058"  # pass: ldr x16, the address that follows
    "00021fd6"  # br x16
)
MACHINE_CODE = {"x86_64": (X86_64, X86_64_END), "aarch64": (AARCH64, b"")}

CALL = "fcntl"
MAP_FIXED = 0x10
INODE_FIELD = 4  # of a line of /proc/self/maps
COMMANDS = {"F_GETLK": 5, "F_SETLK": 6, "F_SETLKW": 7, "F_OFD_GETLK": 36, "F_OFD_SETLK": 37, "F_OFD_SETLKW": 38}

_changing = threading.Lock()
_replacement: int | None = None  # the address of the code; it stays for as long as the process


def install() -> bool:
    """Make SQLite use descriptor locks from now on; return whether it does."""
    global _replacement  # noqa: PLW0603 - one for the process, as SQLite's table of calls
    with _changing:
        if _replacement is not None:
            return True
        if apsw.connections() or not is_supported():
            return False
        calls = apsw.VFS("holdfast-calls", base="")
        try:
            original = calls.xGetSystemCall(CALL)
            code = None if original is None else _executable(machine_code(platform.machine(), original))
            if code is not None and calls.xSetSystemCall(CALL, code):
                _replacement = code
        finally:
            calls.unregister()
        return _replacement is not None


def is_supported() -> bool:
    """Return whether there is machine code for this system."""
    if sys.platform != "linux" or platform.machine() not in MACHINE_CODE or sys.maxsize < 2**32:
        return False
    import fcntl  # noqa: PLC0415 - Linux only

    return all(getattr(fcntl, name, None) == value for name, value in COMMANDS.items())


def machine_code(machine: str, original: int) -> bytes:
    """Return the code that replaces `fcntl`.

    Args:
        machine: the processor, as `platform.machine` names it.
        original: the address that the code jumps to.
    """
    start, end = MACHINE_CODE[machine]
    return start + struct.pack("<Q", original) + end


def _executable(code: bytes) -> int | None:
    """Return the address of memory with this code, which can never be written to; None if the system forbids it."""
    try:
        descriptor = os.memfd_create("holdfast-fcntl")
    except OSError:
        return None
    try:
        os.write(descriptor, code)
        return _map(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, descriptor, 0)
    finally:
        os.close(descriptor)


def _map(address: int | None, size: int, access: int, flags: int, descriptor: int, offset: int) -> int | None:
    """Call the system's `mmap`; None if it refuses."""
    call = ctypes.CDLL(None).mmap
    call.restype = ctypes.c_void_p
    mapped: int | None = call(
        ctypes.c_void_p(address), ctypes.c_size_t(size), access, flags, descriptor, ctypes.c_long(offset)
    )
    return None if mapped == ctypes.c_void_p(-1).value else mapped


def _after_fork_in_child() -> None:
    global _changing  # noqa: PLW0603 - another thread of the parent may have held it
    _changing = threading.Lock()
    if _replacement is not None and apsw.connections():
        for entry in list(Path("/proc/self/fd").iterdir()):
            with contextlib.suppress(OSError):  # the descriptor of this listing
                if entry.readlink().name.endswith("-shm"):
                    _reopen(int(entry.name))


def _reopen(descriptor: int) -> None:
    """Open the same file again under the same number and addresses, so that its locks are no longer the parent's."""
    own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    inode = str(os.fstat(own).st_ino)
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split()  # 7f10e8a5e000-7f10e8a66000 rw-s 00000000 fe:00 3358771 /srv/shop.db-shm
        if len(fields) > INODE_FIELD and fields[INODE_FIELD] == inode and "-shm" in line:
            start, end = (int(address, 16) for address in fields[0].split("-"))
            access = mmap.PROT_READ | (mmap.PROT_WRITE if "w" in fields[1] else 0)
            _map(start, end - start, access, mmap.MAP_SHARED | MAP_FIXED, own, int(fields[2], 16))
    os.dup2(own, descriptor, inheritable=False)
    os.close(own)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
