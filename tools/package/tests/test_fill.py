"""Filling of templates: nothing is left, nothing is invented, nothing is written after a mistake."""

import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
REPOSITORY = "https://code.example/someone/moeflux"
ARCHIVES = [
    "x86_64-unknown-linux-gnu.tar.gz",
    "aarch64-unknown-linux-gnu.tar.gz",
    "aarch64-apple-darwin.tar.gz",
    "x86_64-pc-windows-msvc.zip",
]
PLACEHOLDER = re.compile(r"@[A-Z]+(:[^@\s]*)?@")


def digest(name):
    return hashlib.sha256(name.encode()).hexdigest()


class Fill(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.dir)
        self.out = self.dir / "out"
        self.sums = self.dir / "SHA256SUMS"
        self.write_sums(f"{digest(a)}  moeflux-1.2.3-{a}" for a in ARCHIVES)

    def write_sums(self, lines):
        self.sums.write_text("".join(line + "\n" for line in lines))

    def fill(self, *paths, **changes):
        facts = {"version": "1.2.3", "repository": REPOSITORY, "glibc": "2.28", "seconds": "1700000000"} | changes
        flags = [word for name, value in facts.items() for word in (f"--{name}", value)]
        command = [sys.executable, "-B", PACKAGE / "fill.py", *flags, "--sums", self.sums, "--out", self.out]
        return subprocess.run([*command, *paths], capture_output=True, text=True)

    def fill_all(self):
        folders = sorted((PACKAGE / "templates").iterdir())
        done = self.fill(PACKAGE / "install.sh", PACKAGE / "install.ps1", *folders)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {file.name: file for file in self.out.rglob("*") if file.is_file()}

    def refuses(self, words, *paths, **changes):
        done = self.fill(*(paths or [PACKAGE / "templates/scoop"]), **changes)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(words, done.stderr)
        self.assertFalse(self.out.exists(), "nothing is written after a mistake")

    def test_no_placeholder_is_left(self):
        files = self.fill_all()
        self.assertEqual(len(files), 8, files)
        for file in files.values():
            text = file.read_text()
            self.assertIsNone(PLACEHOLDER.search(text), file)
            self.assertIn("1.2.3", text, file)

    def test_templates_have_placeholders_for_what_differs(self):
        for file in (PACKAGE / "templates").rglob("*"):
            if file.is_file():
                text = file.read_text()
                self.assertIn("@VERSION@", text, file)
                # A hash or an address that is written out would be that of another release.
                self.assertNotRegex(text, r"[0-9a-f]{64}", file)

    def test_hashes_are_those_of_the_archives(self):
        files = self.fill_all()
        scoop = json.loads(files["moeflux.json"].read_text())
        archive = scoop["architecture"]["64bit"]
        self.assertEqual(archive["hash"], digest("x86_64-pc-windows-msvc.zip"))
        self.assertEqual(
            archive["url"], f"{REPOSITORY}/releases/download/v1.2.3/moeflux-1.2.3-x86_64-pc-windows-msvc.zip"
        )
        formula = files["moeflux.rb"].read_text()
        pairs = dict(re.findall(r'url "[^"]*moeflux-1\.2\.3-([^"]*)"\s+sha256 "([0-9a-f]*)"', formula))
        self.assertEqual(pairs, {name: digest(name) for name in ARCHIVES if name.endswith(".tar.gz")})
        installer = files["moeflux.moeflux.installer.yaml"].read_text()
        self.assertIn(digest("x86_64-pc-windows-msvc.zip"), installer)
        self.assertIn('ReleaseDate: "2023-11-14"', installer)

    def test_a_missing_archive_is_named(self):
        self.write_sums(f"{digest(a)}  moeflux-1.2.3-{a}" for a in ARCHIVES[:3])
        self.refuses("@SHA256:x86_64-pc-windows-msvc.zip@")

    def test_an_archive_of_another_version_does_not_count(self):
        self.write_sums(f"{digest(a)}  moeflux-1.2.2-{a}" for a in ARCHIVES)
        self.refuses("@SHA256:")

    def test_sums_that_are_no_sums_are_refused(self):
        for line in ["", "x", f"{'0' * 63}  moeflux", f"{'Z' * 64}  moeflux"]:
            self.write_sums([line])
            self.refuses("no line of sha256sum")
        self.write_sums([f"{'0' * 64}  moeflux", f"{'1' * 64}  moeflux"])
        self.refuses("two hashes of moeflux")

    def test_addresses_and_versions_are_checked(self):
        for repository in ["", "http://code.example/a/b", REPOSITORY + "/", "https://code.example", 'https://a.b/c"d']:
            self.refuses("MOEFLUX_REPOSITORY", repository=repository)
        for version in ["", "1.2", "v1.2.3", "1.2.3'; rm -rf ~ #"]:
            self.refuses("write it like 0.1.0", version=version)
        self.refuses("write it like 2.28", glibc="new")

    def test_an_unknown_placeholder_is_an_error(self):
        template = self.dir / "template"
        template.write_text("@VERSION@ @WHAT@")
        self.refuses("@WHAT@", template)

    def test_a_filled_value_is_not_filled_again(self):
        template = self.dir / "template"
        template.write_text("mail@VERSION@host @@VERSION@@ *@* @version@")
        self.assertEqual(self.fill(template).returncode, 0)
        self.assertEqual((self.out / "template").read_text(), "mail1.2.3host @1.2.3@ *@* @version@")

    def test_formula_parses(self):
        if not shutil.which("ruby"):
            self.skipTest("no ruby")
        formula = self.fill_all()["moeflux.rb"]
        done = subprocess.run(["ruby", "-c", formula], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_flake_gives_a_package_a_system(self):
        if not shutil.which("nix-instantiate"):
            self.skipTest("no nix-instantiate")
        flake = self.fill_all()["flake.nix"]
        # Stand-ins for the parts of nixpkgs that the flake uses: they return what they are given.
        expression = f"""
          let
            lib = {{
              optionals = yes: list: if yes then list else [ ];
              optionalString = yes: text: if yes then text else "";
              makeLibraryPath = builtins.concatStringsSep ":";
              licenses = {{ mit = "mit"; asl20 = "asl20"; }};
              sourceTypes.binaryNativeCode = "binary";
            }};
            pkgs = isLinux: {{
              inherit lib;
              stdenv = {{ hostPlatform = {{ inherit isLinux; }}; mkDerivation = given: given; }};
              fetchurl = given: given;
              installShellFiles = "a"; autoPatchelfHook = "b"; makeWrapper = "c"; vulkan-loader = "vulkan";
            }};
            nixpkgs.legacyPackages = {{
              x86_64-linux = pkgs true; aarch64-linux = pkgs true; aarch64-darwin = pkgs false;
            }};
            outputs = (import {flake}).outputs {{ self = outputs; inherit nixpkgs; }};
          in outputs.packages
        """
        done = subprocess.run(
            ["nix-instantiate", "--eval", "--strict", "--json", "--expr", expression],
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin", "NIX_STATE_DIR": str(self.dir), "NIX_STORE_DIR": str(self.dir), "HOME": str(self.dir)},
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        packages = json.loads(done.stdout)
        self.assertEqual(sorted(packages), ["aarch64-darwin", "aarch64-linux", "x86_64-linux"])
        for system, target in [("x86_64-linux", "x86_64-unknown-linux-gnu"), ("aarch64-darwin", "aarch64-apple-darwin")]:
            package = packages[system]["default"]
            self.assertTrue(package["src"]["url"].endswith(f"/v1.2.3/moeflux-1.2.3-{target}.tar.gz"), package["src"])
            self.assertEqual(package["src"]["sha256"], digest(f"{target}.tar.gz"))
            self.assertEqual("wrapProgram" in package["postFixup"], system.endswith("linux"))


if __name__ == "__main__":
    unittest.main()
