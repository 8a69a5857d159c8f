"""Archives, bills of materials and the check of programs."""

import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
TREE = PACKAGE.parents[1]
sys.path.insert(0, str(PACKAGE))
sys.dont_write_bytecode = True

import check_elf  # noqa: E402
import sbom  # noqa: E402


class Temporary(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.dir)


class Archives(Temporary):
    def folder(self, name, time, umask):
        """The same folder, made at another time under another umask, in another order."""
        folder = self.dir / name / "moeflux-1"
        old = os.umask(umask)
        names = ["b", "a/z", "a-b", "program"]
        for file in names if time % 2 else reversed(names):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(file * 1000)
            os.utime(folder / file, (time, time))
        (folder / "program").chmod(0o700)
        os.umask(old)
        return folder

    def pack(self, out, folder):
        command = [sys.executable, "-B", PACKAGE / "reproducible.py", self.dir / out, folder, "1700000001"]
        return subprocess.run(command, capture_output=True, text=True)

    def test_bytes_do_not_depend_on_time_order_and_umask(self):
        for ending in ["tar.gz", "zip"]:
            for i, (time, umask) in enumerate([(1600000001, 0o022), (1650000000, 0o077)]):
                done = self.pack(f"{i}.{ending}", self.folder(f"{ending}{i}", time, umask))
                self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((self.dir / f"0.{ending}").read_bytes(), (self.dir / f"1.{ending}").read_bytes())

    def test_entries_have_one_owner_one_time_and_their_mode(self):
        folder = self.folder("x", 1600000001, 0o077)
        self.pack("x.tar.gz", folder)
        with tarfile.open(self.dir / "x.tar.gz") as tar:
            entries = tar.getmembers()
        names = [entry.name for entry in entries]
        self.assertEqual(names, sorted(names))
        self.assertEqual(names[0], "moeflux-1")
        self.assertEqual({(e.uid, e.gid, e.uname, e.gname, e.mtime) for e in entries}, {(0, 0, "", "", 1700000001)})
        modes = {entry.name: entry.mode for entry in entries}
        self.assertEqual(modes["moeflux-1/program"], 0o755)
        self.assertEqual(modes["moeflux-1/a/z"], 0o644)
        self.pack("x.zip", folder)
        with zipfile.ZipFile(self.dir / "x.zip") as packed:
            self.assertEqual(packed.read("moeflux-1/a/z").decode(), "a/z" * 1000)
            self.assertEqual(packed.getinfo("moeflux-1/program").external_attr >> 16 & 0o777, 0o755)

    def test_links_out_of_the_folder_are_refused_and_nothing_is_left(self):
        for i, target in enumerate(["/etc/passwd", "a/z", "../x", "nothing"]):
            folder = self.folder(f"x{i}", 1600000001, 0o022)
            (folder / "link").symlink_to(target)
            done = self.pack("x.tar.gz", folder)
            self.assertNotEqual(done.returncode, 0, target)
            self.assertIn("neither a file nor a folder", done.stderr)
            shutil.rmtree(self.dir / f"x{i}")
        self.assertEqual(list(self.dir.iterdir()), [])

    def test_links_to_a_file_of_the_folder_stay_links(self):
        folder = self.folder("x", 1600000001, 0o022)
        (folder / "link").symlink_to("program")
        self.assertEqual(self.pack("x.tar.gz", folder).returncode, 0)
        with tarfile.open(self.dir / "x.tar.gz") as tar:
            link = tar.getmember("moeflux-1/link")
        self.assertEqual((link.issym(), link.linkname), (True, "program"))
        self.assertIn("neither a file", self.pack("x.zip", folder).stderr)


@unittest.skipUnless(shutil.which("cargo"), "no cargo")
class Bill(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lock = (TREE / "Cargo.lock").read_text()
        sums = sbom.hashes(cls.lock)
        cls.facts = sbom.metadata("x86_64-unknown-linux-gnu")
        cls.bill = sbom.bill(cls.facts, sums, "x86_64-unknown-linux-gnu", 1700000000)

    def test_it_names_what_is_compiled_and_nothing_else(self):
        names = {part["name"] for part in self.bill["components"]}
        self.assertLessEqual({"moeflux-engine", "clap", "cc", "serde_derive", "ring"}, names)
        # Of tests, and of other systems.
        self.assertFalse(names & {"assert_cmd", "proptest", "predicates", "windows-sys", "objc2-metal", "xtask"})

    def test_every_crate_has_a_licence_and_those_of_registries_a_hash(self):
        for part in self.bill["components"]:
            self.assertTrue(part.get("licenses"), part)
            if not part["name"].startswith("moeflux"):
                self.assertIn(part["hashes"][0]["content"], self.lock, part["name"])

    def test_dependencies_are_components(self):
        known = {part["bom-ref"] for part in self.bill["components"]} | {self.bill["metadata"]["component"]["bom-ref"]}
        self.assertEqual(len(known), len(self.bill["components"]) + 1, "every reference once")
        self.assertEqual({entry["ref"] for entry in self.bill["dependencies"]}, known)
        for entry in self.bill["dependencies"]:
            self.assertLessEqual(set(entry["dependsOn"]), known)

    def test_targets_differ_and_the_same_gives_the_same(self):
        sums = sbom.hashes(self.lock)
        again = sbom.bill(self.facts, sums, "x86_64-unknown-linux-gnu", 1700000000)
        self.assertEqual(json.dumps(again), json.dumps(self.bill))
        windows = sbom.bill(sbom.metadata("x86_64-pc-windows-msvc"), sums, "x86_64-pc-windows-msvc", 1700000000)
        self.assertNotEqual(windows["serialNumber"], self.bill["serialNumber"])
        self.assertIn("windows-sys", {part["name"] for part in windows["components"]})

    def test_the_library_of_c_has_one_of_its_own(self):
        sums = sbom.hashes(self.lock)
        library = sbom.bill(self.facts, sums, "x86_64-unknown-linux-gnu", 1700000000, "moeflux-c")
        program = library["metadata"]["component"]
        self.assertEqual((program["type"], program["name"]), ("library", "moeflux-c"))
        self.assertNotIn("moeflux-server", {part["name"] for part in library["components"]})


class Programs(Temporary):
    @unittest.skipUnless(sys.platform == "linux", "a program of Linux")
    def test_an_old_library_and_another_processor_are_faults(self):
        data = pathlib.Path(shutil.which("tar")).read_bytes()
        target = next(t for t, machine in check_elf.MACHINES.items() if machine == check_elf.Elf(data).machine)
        other = next(t for t in check_elf.MACHINES if t != target)
        self.assertIn("newer than 2.0", " ".join(check_elf.faults(data, target, "2.0")))
        self.assertIn("it is for processor", " ".join(check_elf.faults(data, other, "2.28")))
        found = " ".join(check_elf.faults(data, target, "99.0"))
        self.assertNotIn("newer", found)

    def test_what_is_no_program_is_refused(self):
        for data in [b"", b"#!/bin/sh\n", gzip.compress(b"x")]:
            with self.assertRaises(ValueError):
                list(check_elf.faults(data, "x86_64-unknown-linux-gnu", "2.28"))


if __name__ == "__main__":
    unittest.main()
