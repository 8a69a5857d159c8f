"""The shell installer, in the shells that are here, against folders and a server on loopback."""

import functools
import hashlib
import http.server
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
SHELLS = [shell for shell in (["dash"], ["bash", "--posix"], ["busybox", "sh"], ["zsh", "--emulate", "sh"]) if shutil.which(shell[0])]
# The installer reads these of the system; the stand-ins say what another would.
UNAME = '#!/bin/sh\ncase $1 in -s) echo {system} ;; -m) echo {machine} ;; esac\n'
PROGRAM = '#!/bin/sh\n[ "$1" != --version ] || echo "moeflux {version}"\n'


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Installer(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="in stalled "))
        self.addCleanup(shutil.rmtree, self.dir)
        self.home = self.dir / "home"
        self.home.mkdir()
        self.release = self.dir / "release"
        self.tmp = self.dir / "tmp"
        self.tmp.mkdir()
        self.bin = self.dir / "path"
        self.bin.mkdir()
        self.system("Linux", "x86_64", "2.31")
        self.make_release("1.2.3")

    def stand_in(self, name, text):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def system(self, system, machine, glibc, bits=64):
        self.stand_in("uname", UNAME.format(system=system, machine=machine))
        answers = f'GNU_LIBC_VERSION) [ -n "{glibc}" ] && echo "glibc {glibc}" ;; LONG_BIT) echo {bits} ;;'
        self.stand_in("getconf", f"#!/bin/sh\ncase $1 in {answers} esac\n")
        self.stand_in("ldd", "#!/bin/sh\necho 'musl libc (x86_64)' >&2\nexit 1\n")

    def make_release(self, version, program=PROGRAM, target="x86_64-unknown-linux-gnu"):
        name = f"moeflux-{version}-{target}"
        folder = self.dir / "made" / name
        for file, text in {
            "moeflux": program.format(version=version),
            "man/moeflux.1": ".TH moeflux 1\n",
            "man/moeflux-run.1": ".TH moeflux-run 1\n",
            "completions/moeflux.bash": "# bash\n",
            "completions/moeflux.fish": "# fish\n",
            "completions/_moeflux": "# zsh\n",
        }.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        (folder / "moeflux").chmod(0o755)
        self.release.mkdir(exist_ok=True)
        self.archive = self.release / f"{name}.tar.gz"
        command = [sys.executable, "-B", PACKAGE / "reproducible.py", self.archive, folder, "1700000000"]
        subprocess.run(command, check=True)
        self.write_sums()
        filled = {"VERSION": version, "REPOSITORY": "https://code.example/a/moeflux", "GLIBC": "2.28"}
        text = (PACKAGE / "install.sh").read_text()
        for key, value in filled.items():
            text = text.replace(f"@{key}@", value)
        self.script = self.dir / "install.sh"
        self.script.write_text(text)

    def write_sums(self, line="{digest}  {name}"):
        digest = hashlib.sha256(self.archive.read_bytes()).hexdigest()
        (self.release / "SHA256SUMS").write_text(line.format(digest=digest, name=self.archive.name) + "\n")

    def environment(self, **changes):
        env = {
            "HOME": str(self.home),
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "TMPDIR": str(self.tmp),
            "MOEFLUX_BASE_URL": str(self.release),
            "LC_ALL": "C",
        } | changes
        return {name: value for name, value in env.items() if value is not None}

    def run_script(self, *arguments, shell=("sh",), **changes):
        command = [*shell, str(self.script), *arguments]
        return subprocess.run(command, env=self.environment(**changes), cwd=self.dir, capture_output=True, text=True)

    def succeeds(self, *arguments, **given):
        done = self.run_script(*arguments, **given)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(list(self.tmp.iterdir()), [], "temporary files are left")
        return done

    def refuses(self, words, *arguments, **given):
        before = self.installed()
        done = self.run_script(*arguments, **given)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(words, done.stderr)
        self.assertTrue(done.stderr.splitlines()[-1].startswith("moeflux: "), done.stderr)
        self.assertEqual(self.installed(), before, "a refusal changes nothing")
        self.assertEqual(list(self.tmp.iterdir()), [], "temporary files are left")

    def installed(self):
        files = (file for file in self.home.rglob("*") if file.is_file())
        return {str(file.relative_to(self.home)): file.read_text() for file in files}

    def test_every_shell_installs_and_uninstalls(self):
        self.assertTrue(SHELLS)
        for shell in SHELLS:
            with self.subTest(shell=shell):
                done = self.succeeds(shell=shell)
                self.assertIn("moeflux 1.2.3 is in", done.stderr)
                self.assertIn("export PATH=", done.stderr)
                self.assertEqual(
                    sorted(self.installed()),
                    [
                        ".local/bin/moeflux",
                        ".local/share/bash-completion/completions/moeflux",
                        ".local/share/fish/vendor_completions.d/moeflux.fish",
                        ".local/share/man/man1/moeflux-run.1",
                        ".local/share/man/man1/moeflux.1",
                        ".local/share/zsh/site-functions/_moeflux",
                    ],
                )
                self.assertEqual((self.home / ".local/bin/moeflux").stat().st_mode & 0o777, 0o755)
                self.succeeds("--uninstall", shell=shell)
                self.assertEqual(self.installed(), {})

    def test_a_folder_of_another_name_gets_the_program_alone(self):
        for arguments, changes in [(["--to", "a b"], {}), ([], {"MOEFLUX_INSTALL": str(self.dir / "a b")})]:
            self.succeeds(*arguments, **changes)
            self.assertEqual([file.name for file in (self.dir / "a b").iterdir()], ["moeflux"])
            self.assertEqual(self.installed(), {})
            self.succeeds("--uninstall", *arguments, **changes)
            self.assertEqual(list((self.dir / "a b").iterdir()), [])

    def test_a_new_version_replaces_the_old_one(self):
        self.succeeds()
        self.make_release("1.3.0")
        self.succeeds()
        self.assertIn("1.3.0", self.installed()[".local/bin/moeflux"])

    def test_another_version_is_chosen_by_a_flag(self):
        self.make_release("1.3.0")
        sums = (self.release / "SHA256SUMS").read_text()
        self.make_release("1.2.3")
        with (self.release / "SHA256SUMS").open("a") as file:
            file.write(sums)
        self.succeeds("--version", "v1.3.0")
        self.assertIn("1.3.0", self.installed()[".local/bin/moeflux"])
        self.assertEqual(self.succeeds("--version").stdout, "moeflux install script 1.2.3\n")

    def test_what_is_damaged_is_refused_and_the_old_program_stays(self):
        self.succeeds()
        whole = self.archive.read_bytes()
        for damaged in [whole[:-1], whole + b"\0", b"", b"<html>not found</html>"]:
            self.archive.write_bytes(damaged)
            self.refuses("is damaged: its SHA-256 is")
        self.archive.write_bytes(whole)
        for line in ["", "{digest}", "{digest}  other-{name}", "{digest}  {name}.sig", "0  {name}", "{digest}00  {name}"]:
            self.write_sums(line)
            self.refuses("SHA256SUMS names no sum of")
        self.write_sums("{digest} *{name}")
        self.succeeds()

    def test_a_program_that_does_not_start_is_refused(self):
        self.make_release("1.2.3", "#!/bin/sh\necho 'libc is too old' >&2\nexit 127\n")
        self.refuses("does not start here: libc is too old")
        self.make_release("1.2.3", "#!/bin/sh\necho moeflux 1.2.4\n")
        self.refuses("the archive has 'moeflux 1.2.4'")
        self.assertFalse(list(self.home.rglob("*.partial.*")))

    def test_systems_without_an_archive_are_named(self):
        for system, words in [
            (("Linux", "x86_64", "2.27"), "this system has 2.27: build from source"),
            (("Linux", "x86_64", "2.9"), "this system has 2.9: build from source"),
            (("Linux", "x86_64", ""), "this system has another"),
            (("Linux", "x86_64", "2.31", 32), "this one has 32 bits"),
            (("Linux", "riscv64", "2.39"), "Linux on riscv64"),
            (("Darwin", "x86_64", ""), "macOS on x86_64"),
            (("FreeBSD", "amd64", ""), "FreeBSD on amd64"),
            (("MINGW64_NT-10.0", "x86_64", ""), "install.ps1"),
        ]:
            self.system(*system)
            self.refuses(words)
        for glibc in ["2.28", "2.100", "3.0"]:
            self.system("Linux", "amd64", glibc)
            self.succeeds()

    def test_other_systems_get_their_archive(self):
        for system, target in [
            (("Linux", "aarch64", "2.28"), "aarch64-unknown-linux-gnu"),
            (("Darwin", "arm64", ""), "aarch64-apple-darwin"),
        ]:
            self.system(*system)
            self.make_release("1.2.3", target=target)
            self.succeeds()
        # A shell that Rosetta translates.
        self.system("Darwin", "x86_64", "")
        self.stand_in("sysctl", "#!/bin/sh\necho 1\n")
        self.succeeds()

    def test_the_library_is_found_where_getconf_is_missing(self):
        self.stand_in("getconf", "#!/bin/sh\nexit 1\n")
        self.stand_in("ldd", "#!/bin/sh\necho 'ldd (Debian GLIBC 2.36-9+deb12u14) 2.36'\necho Copyright\n")
        self.succeeds()

    def test_mistakes_are_named(self):
        self.refuses("there is no option --prefix", "--prefix", "/usr")
        self.refuses("--to needs a folder", "--to")
        self.refuses("'../x' is no version", "--version", "../x")
        self.refuses("there is no moeflux in", "--uninstall")
        self.refuses("there is no home folder", HOME=None)
        self.refuses("cannot read", MOEFLUX_BASE_URL=str(self.dir / "missing"))
        self.refuses("is not encrypted", MOEFLUX_BASE_URL="http://code.example/releases")
        self.refuses("is not encrypted", MOEFLUX_BASE_URL="http://127.0.0.1.code.example/releases")
        (self.dir / "file").write_text("")
        self.refuses("cannot make the folder", "--to", "file/bin")
        self.script.write_text((PACKAGE / "install.sh").read_text())
        self.refuses("belongs to no release", MOEFLUX_BASE_URL=None)

    def test_a_folder_in_the_place_of_the_program_is_refused(self):
        (self.home / ".local/bin/moeflux").mkdir(parents=True)
        self.refuses("is a folder")
        self.assertEqual(list((self.home / ".local/bin").iterdir()), [self.home / ".local/bin/moeflux"])

    def test_the_program_is_installed_where_its_pages_cannot_be(self):
        def folder_for_a_page():
            (self.home / ".local/share/fish/vendor_completions.d/moeflux.fish").mkdir(parents=True)

        def file_for_a_folder():
            (self.home / ".local/share").mkdir(parents=True)
            (self.home / ".local/share/zsh").write_text("")

        def archive_without_one():
            (self.dir / "made" / self.archive.name.removesuffix(".tar.gz") / "completions/_moeflux").unlink()
            name = self.archive.name.removesuffix(".tar.gz")
            command = [sys.executable, "-B", PACKAGE / "reproducible.py", self.archive, self.dir / "made" / name, "1700000000"]
            subprocess.run(command, check=True)
            self.write_sums()

        for obstacle in [folder_for_a_page, file_for_a_folder, archive_without_one]:
            with self.subTest(obstacle=obstacle.__name__):
                obstacle()
                done = self.succeeds()
                self.assertIn("without them", done.stderr)
                self.assertTrue(all(line.startswith(("moeflux: ")) for line in done.stderr.splitlines()), done.stderr)
                self.assertEqual([name for name in self.installed() if name.endswith((".1", "_moeflux", "moeflux.fish"))], [])
                self.assertFalse(list(self.home.rglob("*.partial.*")))
                self.assertIn(".local/bin/moeflux", self.installed())
                shutil.rmtree(self.home)
                self.home.mkdir()
                self.make_release("1.2.3")

    def test_what_cannot_be_removed_leaves_the_program(self):
        self.succeeds()
        page = self.home / ".local/share/man/man1/moeflux-run.1"
        page.unlink()
        page.mkdir()
        done = self.run_script("--uninstall")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("cannot remove", done.stderr)
        self.assertIn(".local/bin/moeflux", self.installed())
        page.rmdir()
        self.succeeds("--uninstall")
        self.assertEqual(self.installed(), {})

    def test_options_that_contradict_each_other_are_refused(self):
        self.succeeds()
        self.refuses("--version needs a version", "--version", "--to", "x")
        self.refuses("--version needs a version", "--to", "x", "--version")
        self.refuses("leave --version out", "--uninstall", "--version", "1.2.3")

    def serve(self, handler=Quiet):
        handler = functools.partial(handler, directory=str(self.release))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}/"

    def test_a_server_gives_the_files(self):
        url = self.serve()
        for program in ["curl", "wget"]:
            if not shutil.which(program):
                continue
            with self.subTest(program=program):
                folder = self.dir / f"only-{program}"
                folder.mkdir()
                for tool in (
                    "sh awk basename cat chmod cp cut dirname getconf gzip head ldd mkdir mktemp mv rm sed sha256sum sort tar uname"
                ).split() + [program]:
                    (folder / tool).symlink_to(shutil.which(tool))
                self.succeeds(MOEFLUX_BASE_URL=url, PATH=f"{self.bin}:{folder}")
                self.succeeds("--uninstall")
                self.refuses("cannot download", "--version", "9.9.9", MOEFLUX_BASE_URL=url + "missing", PATH=f"{self.bin}:{folder}")

    def test_neither_curl_nor_wget_is_named(self):
        folder = self.dir / "few"
        folder.mkdir()
        for tool in "sh basename cat cut dirname getconf gzip head mktemp rm sed sort tar".split():
            (folder / tool).symlink_to(shutil.which(tool))
        self.refuses("neither curl nor wget", MOEFLUX_BASE_URL=self.serve(), PATH=f"{self.bin}:{folder}")

    def test_a_run_that_is_cut_off_leaves_nothing(self):
        self.succeeds()
        before = self.installed()
        requested = threading.Event()

        class Slow(Quiet):
            def do_GET(self):
                if self.path.endswith(".tar.gz"):
                    self.send_response(200)
                    self.send_header("Content-Length", "1000000")
                    self.end_headers()
                    self.wfile.write(b"x" * 1000)
                    self.wfile.flush()
                    requested.set()
                    time.sleep(5)
                else:
                    super().do_GET()

        url = self.serve(Slow)
        for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
            requested.clear()
            process = subprocess.Popen(
                ["sh", str(self.script)],
                env=self.environment(MOEFLUX_BASE_URL=url),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self.assertTrue(requested.wait(30))
            # The terminal sends it to all processes of the group.
            os.killpg(process.pid, number)
            self.assertNotEqual(process.wait(30), 0)
            self.assertEqual(self.installed(), before)
            self.assertEqual(list(self.tmp.iterdir()), [])

    def test_a_script_that_is_cut_off_does_nothing(self):
        text = self.script.read_text()
        for end in [len(text) // 3, len(text) // 2, len(text) - len('main "$@"\n') - 1]:
            self.script.write_text(text[:end])
            self.run_script()
            self.assertEqual(self.installed(), {})

    def test_another_program_of_the_name_is_reported(self):
        self.stand_in("moeflux", "#!/bin/sh\n")
        done = self.succeeds(PATH=f"{self.bin}:{self.home}/.local/bin:/usr/bin:/bin")
        self.assertIn(f"{self.bin}/moeflux comes before it in PATH", done.stderr)


if __name__ == "__main__":
    unittest.main()
