"""What users install: a wheel that carries everything and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from support.scripts import ROOT


def test_the_wheel_holds_every_module_and_the_type_marker(tmp_path: Path) -> None:
    backend = Path(sys.executable).with_name("uv-build")
    subprocess.run([backend, "build-wheel", tmp_path], cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("holdfast_jobs-*.whl")
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
    (wheel,) = tmp_path.glob("holdfast_jobs-*.whl")
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


def test_the_distribution_has_a_name_of_its_own_and_extras_that_are_used(tmp_path: Path) -> None:
    """The name `holdfast` belongs to another distribution; the import and the command have it."""
    backend = Path(sys.executable).with_name("uv-build")
    subprocess.run([backend, "build-wheel", tmp_path], cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (metadata,) = (packed.read(name).decode() for name in packed.namelist() if name.endswith("/METADATA"))
        (commands,) = (packed.read(name).decode() for name in packed.namelist() if name.endswith("/entry_points.txt"))
    assert "\nName: holdfast-jobs\n" in metadata
    assert "holdfast = holdfast.cli.main:main" in commands
    assert set(re.findall(r"^Provides-Extra: (\S+)$", metadata, re.MULTILINE)) == {"postgres", "fast", "yaml", "all"}


def test_documents_and_messages_install_the_distribution_by_its_name() -> None:
    """`pip install holdfast` would install the package of someone else."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    wrong = r"pip install ['\"]?holdfast(?!-jobs)|(?<![\w-])holdfast\[(?:postgres|yaml|fast|all|otel)\]"
    assert [str(page) for page in pages if re.search(wrong, page.read_text())] == []


def pins(lock: Path) -> dict[str, str]:
    """Return the version of each package in a lock."""
    return dict(re.findall(r"^([a-z][\w.-]*)==([^\s;\\]+)", lock.read_text(), re.MULTILINE))


def test_the_runtime_lock_has_all_dependencies_and_nothing_else() -> None:
    """`make demo` installs this lock; each of its pins is one of requirements.lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    run, everything = pins(ROOT / "requirements-run.lock"), pins(ROOT / "requirements.lock")
    deploy = pins(ROOT / "requirements-deploy.lock")
    assert {re.match(r"[\w.-]+", name)[0] for name in project["dependencies"]} <= set(run)  # type: ignore[index]
    assert run.items() <= deploy.items() <= everything.items()
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    assert {re.match(r"[\w.-]+", name)[0] for name in extras} - {"holdfast-jobs"} <= set(deploy)  # type: ignore[index]
    assert len(run) < 20
    assert "pytest" not in deploy
