"""What users install: a wheel that carries everything and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from support.scripts import ROOT


def test_the_wheel_holds_every_module_and_the_type_marker(tmp_path: Path) -> None:
    backend = Path(sys.executable).with_name("uv-build")
    subprocess.run([backend, "build-wheel", tmp_path], cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("holdfast-*.whl")
    packed = {
        name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("holdfast/") and not name.endswith("/")
    }
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in (source / "holdfast").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == expected
    assert "holdfast/py.typed" in packed


def test_the_wheel_runs_without_the_repository(tmp_path: Path) -> None:
    backend = Path(sys.executable).with_name("uv-build")
    subprocess.run([backend, "build-wheel", tmp_path], cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("holdfast-*.whl")
    code = "import holdfast.machines as m; assert '.whl' in m.__file__; print(m.JOB.advance(None, 'job_created'))"
    environment = {"PYTHONPATH": str(wheel)}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ran.stdout, ran.returncode) == ("queued\n", 0), ran.stderr
