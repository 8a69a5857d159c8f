#!/usr/bin/env python3
"""Checks that the crates which the workspace builds on have licences and sources that deny.toml allows.

    cargo metadata --locked --all-features --format-version 1 | tools/ci/licences.py deny.toml

It reads the parts of deny.toml that say which licences and registries are allowed, as cargo-deny does,
without building it. Crates of the workspace are checked, too. Prints what is wrong, one line each.
"""

import json
import re
import sys
import tomllib

CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


class Expression:
    """An SPDX licence expression; `/` between licences, as old manifests write it, means OR."""

    def __init__(self, text):
        self.tokens = re.findall(r"[()]|[^\s()/]+|/", text)
        self.at = 0

    def next(self):
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        self.at += 1
        return token

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def is_allowed(self, allowed):
        """Whether the terms can be met with allowed licences alone. Raises ValueError where it is malformed."""
        result = self.any_of(allowed)
        if self.peek() is not None:
            raise ValueError(f"unexpected {self.peek()!r}")
        return result

    def any_of(self, allowed):
        result = self.all_of(allowed)
        while self.peek() in ("OR", "/"):
            self.next()
            other = self.all_of(allowed)
            result = result or other
        return result

    def all_of(self, allowed):
        result = self.licence(allowed)
        while self.peek() == "AND":
            self.next()
            other = self.licence(allowed)
            result = result and other
        return result

    def licence(self, allowed):
        token = self.next()
        if token == "(":
            result = self.any_of(allowed)
            if self.next() != ")":
                raise ValueError("a parenthesis is not closed")
            return result
        if token is None or token in (")", "OR", "AND", "WITH", "/"):
            raise ValueError(f"a licence is missing before {token!r}")
        if self.peek() == "WITH":
            self.next()
            token = f"{token} WITH {self.next()}"
        return token in allowed


def licence_fault(package, allowed):
    text = package["license"]
    if not text:
        return "has no licence expression"
    try:
        return None if Expression(text).is_allowed(allowed) else f"has the licence {text}, which deny.toml does not allow"
    except ValueError as error:
        return f"has the licence {text!r}: {error}"


def faults(metadata, deny):
    allowed = set(deny["licenses"]["allow"])
    exceptions = {entry["crate"]: set(entry["allow"]) for entry in deny["licenses"].get("exceptions", [])}
    registries = {CRATES_IO, *deny.get("sources", {}).get("allow-registry", [])}
    found = []
    for package in metadata["packages"]:
        name = f"{package['name']} {package['version']}"
        fault = licence_fault(package, allowed | exceptions.get(package["name"], set()))
        if fault:
            found.append(f"{name}: {fault}")
        # Crates of the workspace have no source.
        if package["source"] is not None and package["source"] not in registries:
            found.append(f"{name}: comes from {package['source']}")
    unused = set(exceptions) - {package["name"] for package in metadata["packages"]}
    found.extend(f"deny.toml: no crate is called {name}: remove its exception" for name in sorted(unused))
    return found


def check_itself():
    """Stops where the rules of expressions are not applied."""
    allowed = {"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"}
    for text, want in [
        ("MIT", True),
        ("GPL-3.0", False),
        ("GPL-3.0 OR MIT", True),
        ("GPL-3.0 AND MIT", False),
        ("MIT/Apache-2.0", True),
        ("GPL-3.0 OR (MIT AND Apache-2.0)", True),
        ("(GPL-3.0 OR MIT) AND ISC", False),
        ("GPL-3.0 OR MIT AND ISC", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("MIT WITH LLVM-exception", False),
    ]:
        assert Expression(text).is_allowed(allowed) == want, text
    for text in ["", "(MIT", "MIT OR", "MIT MIT", "AND", "MIT)"]:
        assert licence_fault({"license": text}, allowed), text
    package = {"name": "a", "version": "1.0.0", "license": "MIT", "source": "git+https://example.org/a"}
    deny = {"licenses": {"allow": ["MIT"]}}
    assert len(faults({"packages": [package]}, deny)) == 1
    assert not faults({"packages": [{**package, "source": CRATES_IO}]}, deny)


def main():
    check_itself()
    with open(sys.argv[1], "rb") as file:
        deny = tomllib.load(file)
    metadata = json.load(sys.stdin)
    found = faults(metadata, deny)
    print("\n".join(found) or f"{len(metadata['packages'])} crates have licences and sources that are allowed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
