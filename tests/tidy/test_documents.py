"""The documents are true: their code runs, their links lead somewhere, every command and rule they name exists."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click
import pytest

from holdfast import App, Config
from holdfast.authoring.functions import Options
from holdfast.cli.main import main
from support.scripts import ROOT, load
from support.web import served

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").glob("*.md")])
SERVER = "http://127.0.0.1:4653"  # where pages have one; there is one for each test that needs it
BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@contextmanager
def a_shop(folder: Path) -> Iterator[str]:
    """The example shop, served and worked on; where."""
    target, url = ROOT / "examples" / "shop.py", f"sqlite:///{folder / 'served.db'}"
    command = [sys.executable, "-m", "holdfast", "worker", str(target), "--url", url]
    with served(target, url) as running:
        worker = subprocess.Popen(command, cwd=folder)
        try:
            yield running.url
        finally:
            worker.terminate()
            worker.wait(60)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    """All blocks of a page together, in a process of their own; comments after ``#>`` are the expected output."""
    code = "\n".join(blocks(page, "python"))
    with a_shop(tmp_path) if SERVER in code else nullcontext(SERVER) as server:
        ran = subprocess.run(
            [sys.executable, "-c", code.replace(SERVER, server)],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == re.findall(r"#> (.*)$", code, re.MULTILINE)


def test_the_quickstart_is_checked_by_the_type_checkers() -> None:
    """`make check` runs mypy in strict mode and pyright on this copy."""
    page = next(page for page in PAGES if page.name == "quickstart.md")
    copy = (ROOT / "tests" / "typing" / "quickstart.py").read_text()
    assert copy == "\n".join(blocks(page, "python")), "copy the Python blocks of the page"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.name)
def test_the_holdfast_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    """Lines after ``$ holdfast`` are its output; a line of three dots stands for any number of lines."""
    for block in blocks(page, "console"):
        for command, shown in re.findall(r"^\$ holdfast (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            ran = subprocess.run(
                [Path(sys.executable).with_name("holdfast"), *command.split()],
                cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
            )  # fmt: skip
            pattern = re.escape(shown).replace(re.escape("...\n"), r"(?:.*\n)*")
            assert re.fullmatch(pattern, ran.stdout), f"holdfast {command} prints:\n{ran.stdout}"


@BY_PAGE
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_page_is_on_the_map_and_in_the_site() -> None:
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    assert set(re.findall(r"\]\(([\w/-]+\.md)\)", (docs / "index.md").read_text())) == pages - {"index.md"}
    assert set(re.findall(r'"([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text())) == pages


def test_every_page_is_in_the_folder_of_its_group() -> None:
    """The map, the site and the folders group the pages in the same way."""
    text = (ROOT / "docs" / "index.md").read_text()
    groups = {
        heading.lower(): part
        for heading, part in re.findall(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    }
    assert list(groups) == ["tutorial", "how-to", "reference", "explanation"]
    for group, part in groups.items():
        assert {page.partition("/")[0] for page in re.findall(r"\]\(([\w/-]+\.md)\)", part)} == {group}
    site = (ROOT / "zensical.toml").read_text()
    for group, part in re.findall(r'"([\w-]+)" = \[\n(.*?)\n    \] \}', site, re.DOTALL):
        assert {page.partition("/")[0] for page in re.findall(r'"([\w/-]+\.md)"', part)} == {group.lower()}


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@BY_PAGE
def test_every_anchor_that_a_page_links_to_exists(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*\.md|)#([^)]+)\)", page.read_text()):
        assert anchor in anchors(page.parent / target if target else page), f"{target}#{anchor}"


@BY_PAGE
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)\b[^`]*`", page.read_text()))
    assert named <= targets, named - targets


@BY_PAGE
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    tests = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    named = set(re.findall(r"`(test_\w+)`", page.read_text()))
    assert named <= tests, named - tests


def test_every_name_on_the_page_about_job_code_is_a_test_or_a_scenario() -> None:
    defined = {
        name
        for folder in ("crashes", "engine", "scenarios")
        for path in (ROOT / "tests" / folder).glob("*.py")
        for name in re.findall(r"^def (\w+)", path.read_text(), re.MULTILINE)
    }
    page = (ROOT / "docs" / "reference" / "job-code.md").read_text()
    rows = [row.split("|") for row in re.findall(r"^\| (.*) \|$", page, re.MULTILINE)]
    shown = [row[5].strip() for row in rows if len(row) == 6][1:]
    assert len(shown) > 20, "each way has a row"
    assert all(shown), "and each row says what shows it"
    told = re.findall(r"^Shown by (.*?)\.$", page, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(\w+)`", " ".join(shown + told)))
    assert named <= defined, named - defined


@BY_PAGE
def test_a_page_names_its_actors(page: Path) -> None:
    """Pages speak of workers, clients, callers and operators."""
    prose = re.sub(r"^```.*?^```$|`[^`]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    vague = r"\b(?:whoever|nobody|somebody|anybody|everybody|anew|besides|for ever|unless said)\b"
    assert not re.findall(vague, prose, re.IGNORECASE)


@BY_PAGE
def test_a_page_names_no_machine_and_no_package_host(page: Path) -> None:
    assert not re.search(r"/(?:root|home|work|opt)/|pypi\.|pythonhosted|npmjs", page.read_text())


def test_the_generated_pages_are_what_the_code_makes_of_them() -> None:
    made = load(ROOT / "tools" / "write_docs.py").PAGES
    for page, write in made.items():
        assert (ROOT / "docs" / page).read_text() == write(), f"docs/{page} is stale: run `make docs`"


def test_every_command_and_option_is_on_the_page_of_the_command_line() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    for name, command in main.commands.items():
        assert f"## holdfast {name}" in page
        assert (command.epilog or "").startswith("Example: holdfast "), name
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert f"`{parameter.opts[0]}`" in page, parameter.opts[0]
    for make_target in re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE):
        assert f"make {make_target}" in (ROOT / "CONTRIBUTING.md").read_text(), make_target


def test_the_demo_kills_a_worker_and_ends_well() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for shown in ("kill -9", "lease_expired", "charged once", "every history is valid"):
        assert shown in ran.stdout


def test_every_setting_is_on_its_page_with_its_default() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    for name in Config.__struct_fields__:
        assert f"| `{name}` | `HOLDFAST_{name.upper()}` |" in page


def test_the_tour_runs_to_its_end() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "examples" / "tour.py"], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert "\x1b" not in ran.stdout, "colours belong on a terminal only"
    for shown in (
        "22 legal cells of 90",
        "attempt 1 is stale",
        "event 3, tool_invocation_finished",
        "Pending(io_ready",
    ):
        assert shown in ran.stdout


def test_the_lock_has_hashes_and_names_no_host() -> None:
    for lock in ROOT.glob("requirements*.lock"):
        text = lock.read_text()
        pinned = re.findall(r"^[a-z][\w.-]*==", text, re.MULTILINE)
        assert pinned
        assert "://" not in text
        for entry in re.split(r"\n(?=\S)", text):
            if "==" in entry:
                assert "--hash=sha256:" in entry, entry


def test_every_exception_in_the_code_has_its_reason() -> None:
    for path in sorted((ROOT / "src").rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "noqa" in line or "type: ignore" in line or "pragma" in line:
                said = re.search(r"(noqa: [A-Z\d, ]+|ignore\[[\w-]+\]  #|pragma: no cover) - \w", line)
                assert said or "connection.pragma" in line.lower(), f"{path}:{number}"


def test_every_lint_exception_has_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    ignored = re.search(r"^ignore = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert ignored
    exceptions = [*ignored[1].splitlines(), *re.findall(r'^    "[A-Z]+\d*",.*$', text, re.MULTILINE)]
    assert len(exceptions) > 10
    assert all(re.fullmatch(r'    "[A-Z]+\d*",\s+# \S.*', line) for line in exceptions)


def test_every_option_of_a_job_step_and_tool_is_on_the_page_of_the_python_api() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    found = re.findall(r"^###? (\S+)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    parts = dict(reversed(found))  # the first of a name: the app's, not the one of a plan
    call = set(inspect.signature(App._call).parameters) - {"self", "function", "tool"}
    options = {
        "job": set(inspect.signature(App._job).parameters) - {"self", "function"},
        "step": call - {"on_doubt", "reconcile"},
        "tool": call,
        "JobFunction.options": {name.removesuffix("_seconds") for name in Options.__struct_fields__},
        "Call.options": {"key"},
    }
    for title, names in options.items():
        shown = set(re.findall(r"^ *- `{1,2}(\w+)`{1,2}: ", parts[title], re.MULTILINE))
        assert names <= shown, f"{title}: {names - shown}"
