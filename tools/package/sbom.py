"""The bill of materials of the program, as CycloneDX 1.6 in JSON: every crate that is compiled for a target.

    sbom.py --target TARGET --seconds TIME [--crate CRATE] [--out FILE]

It is made from `cargo metadata --locked`: the crates that moeflux-cli, or CRATE, needs to run and to be built, without those of
tests, each with its version, licence, hash (of Cargo.lock) and dependencies. Needs cargo and Python 3.11.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tomllib
import uuid

TREE = pathlib.Path(__file__).resolve().parents[2]
ROOT = "moeflux-cli"


def metadata(target):
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    return json.loads(subprocess.run(command, cwd=TREE, check=True, stdout=subprocess.PIPE).stdout)


def hashes(lock):
    """SHA-256 of crates by name and version."""
    packages = tomllib.loads(lock)["package"]
    return {(p["name"], p["version"]): p["checksum"] for p in packages if "checksum" in p}


def needed(facts, root):
    """Ids of the crates that `root` is made of, and for each those that it depends on."""
    nodes = {node["id"]: node for node in facts["resolve"]["nodes"]}
    found, waiting = {}, [root]
    while waiting:
        crate = waiting.pop()
        if crate in found:
            continue
        is_used = lambda dep: any(kind["kind"] != "dev" for kind in dep["dep_kinds"])  # noqa: E731
        found[crate] = sorted({dep["pkg"] for dep in nodes[crate]["deps"] if is_used(dep)})
        waiting += found[crate]
    return found


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, sums):
    """What CycloneDX says of a crate."""
    said = {
        "type": "library",
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "scope": "required",
        "purl": purl(package),
    }
    if package.get("description"):
        said["description"] = " ".join(package["description"].split())
    if package.get("license"):
        # An old way to write "or".
        choices = (choice.strip() for choice in package["license"].split("/"))
        said["licenses"] = [{"expression": " OR ".join(choices)}]
    elif package.get("license_file"):
        said["licenses"] = [{"license": {"name": f"see {os.path.basename(package['license_file'])}"}}]
    checksum = sums.get((package["name"], package["version"]))
    if checksum:
        said["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package.get("repository"):
        said["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return said


def bill(facts, sums, target, seconds, crate=ROOT):
    packages = {package["id"]: package for package in facts["packages"]}
    root = next(id for id, package in packages.items() if package["name"] == crate)
    found = needed(facts, root)
    parts = sorted((packages[id] for id in found if id != root), key=purl)
    kind = {"type": "application", "name": "moeflux"} if crate == ROOT else {"type": "library"}
    program = component(packages[root], sums) | kind
    del program["scope"]
    time = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": program,
            "properties": [{"name": "cargo:target", "value": target}],
        },
        "components": [component(package, sums) for package in parts],
        "dependencies": [
            {"ref": purl(packages[id]), "dependsOn": sorted(purl(packages[dep]) for dep in found[id])}
            for id in sorted(found, key=lambda id: purl(packages[id]))
        ],
    }
    # The same content has the same number.
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return {"serialNumber": f"urn:uuid:{number}"} | content


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--seconds", required=True, type=int)
    parser.add_argument("--crate", default=ROOT)
    parser.add_argument("--out")
    given = parser.parse_args(arguments)
    sums = hashes((TREE / "Cargo.lock").read_text())
    text = json.dumps(bill(metadata(given.target), sums, given.target, given.seconds, given.crate), indent=1) + "\n"
    if given.out is None:
        sys.stdout.write(text)
        return
    partial = given.out + ".partial"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(partial, given.out)


if __name__ == "__main__":
    main(sys.argv[1:])
