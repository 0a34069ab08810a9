"""The build of the code: who names it, where it is found, and where it is shown."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Config, build_id, wait_for
from holdfast.errors import InvalidSetting
from support.shell import Shell

REVISION = "0123456789abcdef0123456789abcdef01234567"


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(folder), *identity, *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def repository(folder: Path) -> str:
    git(folder, "init", "--quiet")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "one")
    return git(folder, "rev-parse", "HEAD")[:12]


@pytest.mark.parametrize("bad", ["", " ", "a\nb", "a\x1b[31m", "a\0", " 1.0", "x" * 129])
def test_a_bad_build_is_refused_with_the_rule(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSetting, match="build must be printable text of 1 to 128 characters"):
        App("shop", "memory:", build=bad)
    if "\0" not in bad:
        monkeypatch.setenv("HOLDFAST_BUILD", bad)
        with pytest.raises(
            InvalidSetting, match=r"^HOLDFAST_BUILD=.*build must be printable text of 1 to 128 character"
        ):
            App("shop", "memory:")


def test_a_bad_build_of_the_environment_is_not_told_as_an_error_of_the_module(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (tmp_path / "shop.py").write_text('from holdfast import App\napp = App("shop")\n')
    shell.environment["HOLDFAST_BUILD"] = "1.4\n"
    told = shell.ran("worker", "shop.py", "--until-idle")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith("holdfast: HOLDFAST_BUILD='1.4\\n': a build must be printable text")
    (tmp_path / "shop.py").write_text('from holdfast import App\napp = App("shop", build="1.4\\n")\n')
    del shell.environment["HOLDFAST_BUILD"]
    told = shell.ran("worker", "shop.py", "--until-idle")
    assert "cannot import shop.py" in told.stderr, "here the module is wrong"


def test_the_environment_comes_before_the_code_and_the_code_before_what_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HOLDFAST_BUILD", raising=False)
    assert App("shop", "memory:", build="1.0").build == "1.0"
    assert App("shop", "memory:", config=Config(build="2.0"), build="1.0").build == "2.0"
    monkeypatch.setenv("HOLDFAST_BUILD", "null")
    assert App("shop", "memory:", build="1.0").build == "null"


def test_a_revision_is_read_from_the_files_of_git(tmp_path: Path) -> None:
    main, linked = tmp_path / "main", tmp_path / "linked"
    (main / "a" / "b").mkdir(parents=True)
    first = repository(main)
    assert build_id.git_revision(main / "a" / "b") == first
    git(main, "worktree", "add", "--quiet", str(linked), "-b", "other")
    git(linked, "commit", "--quiet", "--allow-empty", "-m", "two")
    second = git(linked, "rev-parse", "HEAD")[:12]
    assert [build_id.git_revision(main), build_id.git_revision(linked)] == [first, second]
    git(main, "pack-refs", "--all")
    assert [build_id.git_revision(main), build_id.git_revision(linked)] == [first, second]
    git(main, "checkout", "--quiet", "--detach", second)
    assert build_id.git_revision(main) == second


@pytest.mark.parametrize(
    "files",
    [{}, {"HEAD": "ref: refs/heads/main"}, {"HEAD": "nonsense"}, {"HEAD": "ref: refs/heads/main", "packed-refs": "#"}],
    ids=["nothing", "unborn", "nonsense", "packed"],
)
def test_what_git_does_not_say_is_not_known(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / ".git").mkdir()
    for name, text in files.items():
        (tmp_path / ".git" / name).write_text(text)
    (tmp_path / "shop.py").write_text("")
    assert build_id.found_build("no_such_module") is None
    try:
        found = build_id.git_revision(tmp_path)
    except OSError:  # as `found_build` expects
        found = None
    assert found is None


def test_code_without_a_module_has_no_build() -> None:
    names = {"app": App("shop", "memory:")}
    exec("@app.job\nasync def work() -> int:\n    return 1", names)  # noqa: S102 - as a notebook or a plugin may do
    assert names["app"].build is None


def wheel(folder: Path, *, top_level: bool, origin: dict[str, Any] | None = None) -> Path:
    """Unpack an installed distribution `my-shop` with the package `shop`, as pip does."""
    installed = folder / "installed"
    info = installed / "my_shop-1.4.2.dist-info"
    (installed / "shop").mkdir(parents=True)
    info.mkdir()
    (installed / "shop" / "__init__.py").write_text("")
    code = """
        from holdfast import App
        app = App("shop", "memory:")
        @app.job
        async def work() -> None: ...
        print(app.build)
    """
    (installed / "shop" / "jobs.py").write_text(textwrap.dedent(code))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-shop\nVersion: 1.4.2\n")
    if top_level:
        (info / "top_level.txt").write_text("shop\n")
    (info / "RECORD").write_text("shop/__init__.py,,\nshop/jobs.py,,\nmy_shop-1.4.2.dist-info/METADATA,,\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    other = installed / "other-9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 9\n")
    (other / "RECORD").write_text("other/shop/x.py,,\nshopping.py,,\n")
    return installed


def build_of(folder: Path, module: str) -> str:
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); import {module}"
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_an_installed_app_has_the_version_of_its_distribution(tmp_path: Path) -> None:
    repository(tmp_path)  # as a virtual environment in a project: this revision is not that of the app
    assert build_of(wheel(tmp_path / "one", top_level=True), "shop.jobs") == "1.4.2"
    assert build_of(wheel(tmp_path / "two", top_level=False), "shop.jobs") == "1.4.2"


def test_an_app_installed_from_git_has_that_revision_too(tmp_path: Path) -> None:
    origin: dict[str, Any] = {"url": "https://example.com/shop", "vcs_info": {"vcs": "git", "commit_id": REVISION}}
    assert build_of(wheel(tmp_path, top_level=True, origin=origin), "shop.jobs") == "1.4.2+0123456789ab"


def test_an_editable_app_has_its_version_and_the_revision_of_its_folder(tmp_path: Path) -> None:
    source = tmp_path / "src tree"
    installed = wheel(tmp_path, top_level=True)
    (installed / "shop").rename(tmp_path / "shop")
    source.mkdir()
    (tmp_path / "shop").rename(source / "shop")
    revision = repository(source)
    info = installed / "my_shop-1.4.2.dist-info"
    info.rename(installed / "shop-1.4.2.dist-info")
    (installed / "shop-1.4.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.4.2\n")
    origin = {"url": source.as_uri(), "dir_info": {"editable": True}}
    (installed / "shop-1.4.2.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    program = f"import sys; sys.path[:0] = [{str(source)!r}, {str(installed)!r}]; import shop.jobs"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == f"1.4.2+{revision}"


def test_code_that_is_not_installed_has_the_revision_of_its_folder_or_no_build(tmp_path: Path) -> None:
    code = (wheel(tmp_path / "made", top_level=True) / "shop" / "jobs.py").read_text()
    for place in ("tracked", "plain"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "jobs.py").write_text(code)
    revision = repository(tmp_path / "tracked")
    assert build_of(tmp_path / "tracked", "jobs") == revision
    assert build_of(tmp_path / "plain", "jobs") == "None"


def test_every_attempt_its_run_and_its_worker_show_the_build(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """On each store: in job_running, in the record, in the story, and in the list of workers."""

    @app.job
    async def work() -> str:
        await wait_for("go")
        return "done"

    for build in ("1.0", "2.0"):
        monkeypatch.setattr(app, "_build", build)
        if build == "1.0":
            run = app.start(work)
            assert run.record().build is None, "no worker has taken it"
        else:
            run.signal("go")
        app.worker().run(until_idle=True)
        assert run.record().build == build
    started = [event.payload["build"] for event in app.events(run.id) if event.type == "job_running"]
    assert started == ["1.0", "2.0"]
    last = app.story(run.id)
    leases = [value for item in last for value in (item.changes.get("leases") or {}).values()]
    assert [lease["build"] for lease in leases if "build" in lease][:1] == ["1.0"]
    assert app.verify() == {}


def test_the_commands_show_the_build(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    code = """
        from holdfast import App
        app = App("shop", build="1.4.2")
        seen = []
        @app.step
        def look() -> str:
            from holdfast import App
            return App("cli").workers()[0].card.build
        @app.job
        async def work() -> str:
            return await look()
    """
    (tmp_path / "shop.py").write_text(textwrap.dedent(code))
    run = shell.run("start", "shop.py", "work")
    shell.run("worker", "shop.py", "--until-idle")
    shown = shell.json("show", run)
    assert (shown["build"], shown["result"]) == ("1.4.2", "1.4.2")
    assert "build                1.4.2" in shell.run("show", run)
