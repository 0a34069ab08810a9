"""The report of a check, as lines for people and as JUnit XML for CI systems."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from holdfast.deploys.run_check import RunCheck
from holdfast.deploys.store_check import Findings
from holdfast.engine.replay_report import Verdict

WORDS = {
    Verdict.FITS: "fit",
    Verdict.UNUSED: "fit with unused results",
    Verdict.OTHER_END: "would end otherwise",
    Verdict.STOPS: "would stop",
    Verdict.UNDECODABLE: "no longer decode",
    Verdict.KEY_MISSING: "lack a key",
    Verdict.GONE: "have no job of their name",
}
LINES_MAX = 100  # runs that are printed for people
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def report_lines(findings: Findings) -> Iterator[str]:
    """Yield the report for people: counts per entry, then the runs that do not simply fit."""
    width = max(map(len, findings.counts), default=0)
    for entry, counts in sorted(findings.counts.items()):
        parts = [f"{counts[verdict.value]:,} {WORDS[verdict]}" for verdict in Verdict if counts.get(verdict.value)]
        yield f"{entry:<{width}}  {', '.join(parts)}"
    for found in findings.runs[:LINES_MAX]:
        yield run_line(found)
    more = len(findings.runs) - LINES_MAX + findings.left_off
    if more > 0:
        yield f"and {more:,} more"
    for alias, number in sorted(findings.aliases.items()):
        yield f"{number:,} {'run needs' if number == 1 else 'runs need'} the alias {alias!r}"
    if findings.elsewhere:
        yield f"{findings.elsewhere:,} runs of other apps were not checked"
    if findings.kept:
        many = "1 run is" if findings.kept == 1 else f"{findings.kept:,} runs are"
        yield f"{many} kept for other builds, and not checked"
    if findings.unchanged:
        yield f"{findings.unchanged:,} runs have not changed since the last check"
    yield summary(findings)


def summary(findings: Findings) -> str:
    """Return the result in one line."""
    runs = f"{findings.checked:,} checked runs" if findings.checked != 1 else "1 checked run"
    if not findings.failures:
        return f"the code fits: {runs}"
    told = f"the code does not fit: {findings.failures:,} of {runs} would not go on"
    if not findings.ended or not findings.at:
        return told
    have = "has" if findings.ended == 1 else "have"
    return f"{told}; {findings.ended:,} of them {have} ended (--sample 0 skips such)"


def run_line(found: RunCheck) -> str:
    """Return one run for people."""
    at = f" at {shown_line(found.line)}" if found.line is not None else ""
    ended = "" if found.live else "has ended, and "
    match found.verdict:
        case Verdict.UNUSED:
            calls = [f"no longer calls {', '.join(found.unused)}"] if found.unused else []
            signals = [f"does not use the signal of {', '.join(found.signals)}"] if found.signals else []
            return f"  {found.run}  fits, and {' and '.join(calls + signals)}"
        case Verdict.STOPS:
            return f"  {found.run}  {ended}would stop{at}: {'; '.join(found.reasons)}"
        case Verdict.OTHER_END:
            return f"  {found.run}  {ended}would end otherwise{at}: {'; '.join(found.reasons)}"
        case _:
            return f"  {found.run}  {found.verdict.replace('_', ' ')}{at}: {'; '.join(found.reasons)}"


def shown_line(line: str) -> str:
    """Return file:line relative to the current folder, if the file is in it."""
    file, _, number = line.rpartition(":")
    path = Path(file)
    return f"{path.relative_to(Path.cwd())}:{number}" if path.is_relative_to(Path.cwd()) else line


def junit(findings: Findings) -> str:
    """Return the report as JUnit XML: a suite per entry, with a case per run that would not go on."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    lines.append(f'<testsuites name="holdfast check" tests="{findings.checked}" failures="{findings.failures}">')
    for entry, counts in sorted(findings.counts.items()):
        failing = [found for found in findings.runs if found.entry == entry and found.verdict.is_failure]
        fitting = sum(number for name, number in counts.items() if not Verdict(name).is_failure)
        cases = len(failing) + 1
        lines.append(f'  <testsuite name={_attribute(entry)} tests="{cases}" failures="{len(failing)}">')
        lines.append(f'    <testcase classname={_attribute(entry)} name="{fitting} runs fit"/>')
        for found in failing:
            case = f"    <testcase classname={_attribute(entry)} name={_attribute(found.run)}"
            place = f" file={_attribute(found.line.rpartition(':')[0])}" if found.line is not None else ""
            lines.append(f"{case}{place}>")
            message = "; ".join(found.reasons)
            text = escape(_text(run_line(found).strip()))
            lines.append(f'      <failure type="{found.verdict}" message={_attribute(message)}>{text}</failure>')
            lines.append("    </testcase>")
        lines.append("  </testsuite>")
    lines.append("</testsuites>")
    return "\n".join(lines) + "\n"


def _attribute(text: str) -> str:
    return quoteattr(_text(text))


def _text(text: str) -> str:
    """Return text without the characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)
