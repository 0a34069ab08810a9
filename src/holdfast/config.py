"""Settings: one frozen value, read and checked once, passed down. Nothing else reads the environment.

Every field is also an environment variable, ``HOLDFAST_<FIELD>``; what is given in code comes first, then the
environment, then the default here.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import InvalidSetting

__all__ = ["Config"]

PAYLOAD_BYTES_LIMIT = 8 * 1024 * 1024  # half of what one event may hold: a value and all that is said beside it fit


# What a settings file may say: what can change under jobs that run.
RELOADABLE = frozenset({
    "concurrency", "gate_park_seconds", "grace_seconds", "idle_seconds", "inline_retry_seconds", "park_seconds",
    "progress_seconds", "shutdown_seconds",
})  # fmt: skip


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """How Holdfast behaves. Durations are in seconds.

    Attributes:
        url: where jobs are kept: ``sqlite:///path``, ``postgresql://…``, or ``memory:`` for tests.
        effects: where results of calls are kept besides: empty for the job's own database alone, or a directory.
        concurrency: jobs that one worker runs at once.
        lease_seconds: how long a claim lasts without a heartbeat; a heartbeat is sent at a third of it.
        loop_stall_seconds: how long a worker's event loop may not answer, because a step blocks it, before the worker
            gives its jobs back and ends.
        poll_seconds: how often a SQLite file is looked at for commits of other processes, at most; where the system can
            tell of them (Linux), only while there are any.
        busy_seconds: how long a SQLite file that another process holds is waited for.
        grace_seconds: how long a cancelled job may clean up before it is ended.
        shutdown_seconds: how long a stopping worker lets its jobs go on before it hands them back.
        inline_retry_seconds: a retry that is due sooner waits in the worker; a later one is kept in the store.
        park_seconds: a wait that is longer is shown as parked.
        gate_park_seconds: a call whose gate opens later than this gives its job's slot back until then.
        idle_seconds: a worker that runs until it is idle still waits for what is due within this time.
        max_attempts: crashes after which a job is given up as poison.
        payload_bytes_max: arguments, results and signals with more bytes of JSON than this are refused.
        progress_seconds: how often a run's progress is written at most; what comes between is not kept.
        blobs: where large exports are kept: empty for the job's own database, or a directory.
        export_bytes_max: an export with more bytes than this is refused.
        exports_max: how many exports a run may have.
        keep_seconds: runs that ended longer ago are removed by workers; 0 keeps them for ever.
        keep_runs: how many ended runs workers leave at most, the newest; 0 is any number.
        settings_file: a TOML file with some of these settings, which workers read again when it changes.
        tokens: the file that tokens for the HTTP API are kept in.
        token: one token with every right, for where a file is unhandy; never shown.
    """

    url: str = "sqlite:///holdfast.db"
    effects: str = ""
    concurrency: int = 100
    lease_seconds: float = 15.0
    loop_stall_seconds: float = 300.0
    poll_seconds: float = 0.02
    busy_seconds: float = 30.0
    grace_seconds: float = 10.0
    shutdown_seconds: float = 5.0
    inline_retry_seconds: float = 5.0
    park_seconds: float = 60.0
    gate_park_seconds: float = 5.0
    idle_seconds: float = 10.0
    max_attempts: int = 5
    payload_bytes_max: int = 1_048_576
    progress_seconds: float = 0.2
    blobs: str = ""
    export_bytes_max: int = 67_108_864
    exports_max: int = 10_000
    keep_seconds: float = 0.0
    keep_runs: int = 0
    settings_file: str = ""
    tokens: str = "holdfast-tokens.json"
    token: str = ""

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["token"] = "…" if self.token else ""
        return f"Config({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name in {"keep_seconds", "keep_runs"}:
                if not 0 <= value < float("inf"):
                    raise InvalidSetting(name, value, "it must be 0, which keeps all, or more")
            elif name.endswith("_seconds") and not value > 0:
                raise InvalidSetting(name, value, "it must be over 0")
            if name in {"concurrency", "export_bytes_max", "exports_max", "max_attempts"} and value < 1:
                raise InvalidSetting(name, value, "it must be at least 1")
            if name == "payload_bytes_max" and not 1 <= value <= PAYLOAD_BYTES_LIMIT:
                raise InvalidSetting(name, value, f"it must be from 1 to {PAYLOAD_BYTES_LIMIT}")

    @classmethod
    def read(cls, given: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Config:
        """Put the settings together: what is given, then the environment, then the defaults.

        Raises:
            InvalidSetting: a value of the wrong kind, or that cannot work.
        """
        env = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        for field in msgspec.structs.fields(cls):
            name = f"HOLDFAST_{field.name.upper()}"
            if name in env:
                try:
                    values[field.name] = msgspec.convert(env[name], field.type, strict=False)
                except msgspec.ValidationError as error:
                    raise InvalidSetting(name, env[name], str(error)) from error
        return cls(**{**values, **(given or {})})

    def reloaded(self) -> Config:
        """Give these settings with what the settings file says now in their place; without one they are as they were.

        Raises:
            InvalidSetting: the file cannot be read, or says what it may not.
        """
        try:
            said = tomllib.loads(Path(self.settings_file).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return self
        except (OSError, ValueError) as error:
            raise InvalidSetting("settings_file", self.settings_file, str(error)) from error
        values: dict[str, Any] = {}
        fields = {field.name: field.type for field in msgspec.structs.fields(type(self))}
        for name, value in said.items():
            if name not in RELOADABLE:
                raise InvalidSetting(name, value, f"a settings file may say {', '.join(sorted(RELOADABLE))}")
            try:
                values[name] = msgspec.convert(value, fields[name])
            except msgspec.ValidationError as error:
                raise InvalidSetting(name, value, str(error)) from error
        return msgspec.structs.replace(self, **values)
