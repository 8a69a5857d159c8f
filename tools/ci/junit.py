#!/usr/bin/env python3
"""Turns what `cargo test` prints into a JUnit file: junit.py LOG OUT.

A test suite is a test executable, or the examples of a crate's documentation. Stable Rust prints no times of single
tests: a suite has its own."""

import re
import sys
import xml.etree.ElementTree as ET

RUNNING = re.compile(r"^\s+Running (?P<source>.+?) \((?P<program>.+)-[0-9a-f]+(?:\.exe)?\)$")
DOCS = re.compile(r"^\s+Doc-tests (?P<name>\S+)$")
TEST = re.compile(r"^test (?P<name>.+?)(?: - should panic)? \.\.\. (?P<outcome>ok|FAILED|ignored)(?:, (?P<why>.*))?$")
OUTPUT = re.compile(r"^---- (?P<name>.+) stdout ----$")
RESULT = re.compile(r"^test result: \w+\. (?P<passed>\d+) passed; (?P<failed>\d+) failed; (?P<ignored>\d+) ignored; "
                    r".*finished in (?P<seconds>[\d.]+)s$")


class Suite:
    def __init__(self, name):
        self.name, self.outcomes, self.outputs, self.result = name, {}, {}, None

    def element(self):
        counted = self.result or {"passed": 0, "failed": 0, "ignored": 0, "seconds": "0"}
        # An executable that ends without a result has crashed.
        n_errors = 0 if self.result else 1
        n = sum(int(counted[key]) for key in ("passed", "failed", "ignored"))
        suite = ET.Element("testsuite", name=self.name, tests=str(n + n_errors), failures=str(counted["failed"]),
                           skipped=str(counted["ignored"]), errors=str(n_errors), time=counted["seconds"])
        for name, (outcome, why) in self.outcomes.items():
            case = ET.SubElement(suite, "testcase", classname=self.name, name=name)
            if outcome == "ignored":
                ET.SubElement(case, "skipped", message=why or "")
            elif outcome == "FAILED":
                failure = ET.SubElement(case, "failure", message="failed")
                failure.text = printable("".join(self.outputs.get(name, [])))
        if n_errors:
            case = ET.SubElement(suite, "testcase", classname=self.name, name="the executable")
            ET.SubElement(case, "error", message="it ended without a result")
        return suite


def printable(text):
    """The characters that XML allows."""
    return re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def suites(lines):
    package, found, output = "", [], None
    for line in lines:
        if match := RUNNING.match(line):
            program = match["program"].replace("\\", "/").rsplit("/", 1)[-1]
            # Cargo runs a package's unit tests first.
            if match["source"].startswith("unittests"):
                package = program
            found.append(Suite(package if program == package else f"{package}::{program}"))
            output = None
        elif match := DOCS.match(line):
            found.append(Suite(f"{match['name']}::documentation"))
            output = None
        elif not found:
            continue
        elif match := TEST.match(line):
            found[-1].outcomes[match["name"]] = (match["outcome"], match["why"])
        elif match := OUTPUT.match(line):
            output = found[-1].outputs.setdefault(match["name"], [])
        elif match := RESULT.match(line):
            found[-1].result, output = match.groupdict(), None
        elif line == "failures:\n":
            output = None
        elif output is not None:
            output.append(line)
    return found


def main():
    log, out = sys.argv[1:]
    with open(log, encoding="utf-8", errors="replace") as file:
        found = suites(file)
    root = ET.Element("testsuites")
    root.extend(suite.element() for suite in found)
    ET.ElementTree(root).write(out, encoding="utf-8", xml_declaration=True)
    for suite in found:
        n_seen, result = len(suite.outcomes), suite.result
        if result and n_seen != sum(int(result[key]) for key in ("passed", "failed", "ignored")):
            print(f"{out}: {suite.name} has {n_seen} tests by name, and its result counts {result}", file=sys.stderr)
    slowest = sorted((suite for suite in found if suite.result), key=lambda suite: -float(suite.result["seconds"]))
    print(f"{out}: {len(found)} suites, the slowest:",
          ", ".join(f"{suite.name} {suite.result['seconds']} s" for suite in slowest[:5]))


main()
