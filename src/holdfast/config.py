"""Settings: one frozen value, read and checked once, then passed down. No other module reads the environment.

Every field is also an environment variable, ``HOLDFAST_<FIELD>``. A value set in code wins over the environment, which
wins over the default here.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import InvalidSetting, shown_url
from holdfast.schedules.retention_rules import Rules, rules_of

PAYLOAD_BYTES_LIMIT = 8 * 1024 * 1024  # half the size of an event: a value fits with everything around it
BUILD_MAX = 128  # characters; every attempt and its run keep it


# The settings that a settings file may change while jobs run.
RELOADABLE = frozenset({
    "concurrency", "gate_park_seconds", "grace_seconds", "idle_seconds", "inline_retry_seconds", "park_seconds",
    "progress_seconds", "shutdown_seconds",
})  # fmt: skip


def check_build(build: object) -> None:
    """Check the name of a build.

    Raises:
        InvalidSetting: it is not text, is empty or too long, or has spaces at an end or characters that do not print.
    """
    if (
        not isinstance(build, str)
        or not 0 < len(build) <= BUILD_MAX
        or not build.isprintable()
        or build != build.strip()
    ):
        rule = (
            f"a build must be printable text of 1 to {BUILD_MAX} characters without spaces at its ends, such as '1.4.2'"
        )
        raise InvalidSetting("build", build[:BUILD_MAX] if isinstance(build, str) else build, rule)


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of Holdfast. Durations are in seconds.

    Attributes:
        url: where jobs are stored: ``sqlite:///path``, ``postgresql://…``, or ``memory:`` for tests.
        effects: a directory that also stores results of calls; empty for the job's own database alone.
        concurrency: jobs that one worker runs at the same time.
        lease_seconds: how long a claim lasts without a heartbeat. A heartbeat is sent after a third of it.
        loop_stall_seconds: how long a step may block a worker's event loop before the worker gives its jobs back and
            ends.
        poll_seconds: how often, at most, a SQLite file is checked for commits of other processes. Where the system
            reports commits (Linux), it is checked only when there are any.
        busy_seconds: how long to wait for a SQLite file that another process has locked.
        grace_seconds: how long a cancelled job may clean up before it is ended.
        shutdown_seconds: how long a stopping worker lets its jobs run before it gives them back.
        inline_retry_seconds: a retry that is due sooner waits in the worker; a later one is stored.
        park_seconds: a longer wait is shown as parked.
        gate_park_seconds: a call whose gate opens later than this frees its job's slot until then.
        idle_seconds: a worker that runs until idle still waits for jobs that are due within this time.
        max_attempts: crashes after which a job is given up as poison.
        child_depth_max: how deep jobs may start jobs as children; a job started by no other has depth 0.
        payload_bytes_max: arguments and signals with more bytes of JSON are refused; larger results are blobs.
        result_bytes_max: a result of a job, step or tool with more bytes of JSON is refused.
        progress_seconds: the shortest time between two stored progress reports; reports in between are dropped.
        blobs: a directory for large exports and results; empty for the job's own database.
        export_bytes_max: an export with more bytes is refused.
        exports_max: the number of exports that a run may have.
        keep_seconds: workers remove runs that ended longer ago; 0 keeps them permanently.
        keep_runs: the number of ended runs that workers keep, newest first; 0 keeps all.
        keep_audit_seconds: workers remove rows of the audit log that are older; 0 keeps them permanently.
        retention: how long runs stay after their end, such as ``30d``. By status and job: a mapping, or text
            such as ``succeeded=7d, failed=90d, shop.checkout=keep``. The schedule ``holdfast.retention`` removes older
            runs. Empty keeps all.
        settings_file: a TOML file with some of these settings, which workers read again when it changes.
        tokens: the file with the tokens of the HTTP API; empty for ``holdfast-tokens.json`` next to the SQLite
            database, or in the current folder for another store.
        token: one token with every right, for where a file is inconvenient; never shown.
        build: the build of the code, which attempts and workers show; None for that of `App(build=…)`, or the found
            one.
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
    child_depth_max: int = 100
    payload_bytes_max: int = 1_048_576
    result_bytes_max: int = 67_108_864
    progress_seconds: float = 0.2
    blobs: str = ""
    export_bytes_max: int = 67_108_864
    exports_max: int = 10_000
    keep_seconds: float = 0.0
    keep_runs: int = 0
    keep_audit_seconds: float = 0.0
    retention: str | float | dict[str, str | float | None] = ""
    settings_file: str = ""
    tokens: str = ""
    token: str = ""
    build: str | None = None

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown |= {"token": "…" if self.token else "", "url": shown_url(self.url)}
        return f"Config({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name in {"keep_audit_seconds", "keep_seconds", "keep_runs"}:
                if not 0 <= value < float("inf"):
                    raise InvalidSetting(name, value, "it must be 0 (keeps all) or greater")
            elif name.endswith("_seconds") and not value > 0:
                raise InvalidSetting(name, value, "it must be greater than 0")
            if (
                name in {"child_depth_max", "concurrency", "exports_max", "max_attempts"}
                or name in {"export_bytes_max", "result_bytes_max"}
            ) and value < 1:
                raise InvalidSetting(name, value, "it must be at least 1")
            if name == "payload_bytes_max" and not 1 <= value <= PAYLOAD_BYTES_LIMIT:
                raise InvalidSetting(name, value, f"it must be from 1 to {PAYLOAD_BYTES_LIMIT}")
        if self.build is not None:
            check_build(self.build)
        self.retention_rules()

    def retention_rules(self) -> Rules | None:
        """Return the retention rules in seconds, or None if all runs stay.

        Raises:
            InvalidSetting: `retention` is not valid.
        """
        if self.retention == "":
            return None
        try:
            return rules_of(self.retention)
        except ValueError as error:
            raise InvalidSetting("retention", self.retention, str(error)) from None

    @classmethod
    def read(cls, values: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Config:
        """Return the settings: `values` of the code, then the environment, then the defaults.

        Raises:
            InvalidSetting: a value has the wrong type or is invalid.
        """
        env = os.environ if environment is None else environment
        merged: dict[str, Any] = {}
        for field in msgspec.structs.fields(cls):
            name = f"HOLDFAST_{field.name.upper()}"
            if name in env:
                try:
                    merged[field.name] = msgspec.convert(env[name], field.type, strict=False)
                except msgspec.ValidationError as error:
                    raise InvalidSetting(name, env[name], str(error)) from error
        given = {**merged, **(values or {})}
        try:
            return cls(**given)
        except InvalidSetting as error:
            if error.name in merged and error.name not in (values or {}):  # name what the user has set
                raise InvalidSetting(f"HOLDFAST_{error.name.upper()}", error.value, error.reason) from error
            raise

    def reloaded(self) -> Config:
        """Return these settings, with the current values of the settings file. Without a file they are unchanged.

        Raises:
            InvalidSetting: the file cannot be read, or has a setting that it may not change.
        """
        try:
            settings = tomllib.loads(Path(self.settings_file).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return self
        except (OSError, ValueError) as error:
            raise InvalidSetting("settings_file", self.settings_file, str(error)) from error
        values: dict[str, Any] = {}
        fields = {field.name: field.type for field in msgspec.structs.fields(type(self))}
        for name, value in settings.items():
            if name not in RELOADABLE:
                raise InvalidSetting(name, value, f"a settings file may contain only {', '.join(sorted(RELOADABLE))}")
            try:
                values[name] = msgspec.convert(value, fields[name])
            except msgspec.ValidationError as error:
                raise InvalidSetting(name, value, str(error)) from error
        return msgspec.structs.replace(self, **values)
