"""A server with the demo model, and strict reading of what it streams."""

import json
import os
import re
import subprocess
import tempfile
import threading
import time

import httpx
import pytest

from page_driver import Page

MODEL = "moeflux-demo"


class Server:
    """The binary that MOEFLUX_BIN names, serving on a free port."""

    def __init__(self, *args, env=None):
        command = [os.environ["MOEFLUX_BIN"], "serve", "--addr", "127.0.0.1:0", *args]
        # What one test has evaluated is not there for the next, unless it says so.
        if not {"--prompt-cache", "--prompt-memory"} & {*args}:
            command.append("--no-prompt-cache")
        own = {k: v for k, v in os.environ.items() if not k.startswith("MOEFLUX_")}
        own["MOEFLUX_CACHE"] = os.path.join(tempfile.gettempdir(), "moeflux-clients")
        env = {**own, **(env or {})}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
        self.lines = []
        self.url = None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"listening on (http://\S+)", line):
                self.url = found[1]
                break
        assert self.url, self.lines
        self.reader = threading.Thread(target=self.drain, daemon=True)
        self.reader.start()

    def drain(self):
        for line in self.process.stderr:
            self.lines.append(line)

    def stop(self, timeout=60):
        self.process.terminate()
        return self.wait(timeout)

    def wait(self, timeout=60):
        """Its exit code, when all that it said is in `lines`."""
        code = self.process.wait(timeout)
        self.reader.join(timeout)
        return code

    def kill(self):
        self.process.kill()
        self.wait()


def until(condition, seconds=60):
    """Waits for a condition, on machines that do other things, too."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="session")
def server():
    server = Server()
    yield server
    assert server.stop() == 0
    assert not any("panicked" in line for line in server.lines), server.lines


@pytest.fixture
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Page(tmp_path_factory.mktemp("downloads"))
    yield browser
    browser.browser.quit()


@pytest.fixture
def page(browser, server):
    """The page without anything kept, in a window of its own."""
    browser.resize("desktop", "light")
    browser.open(server.url + "/")
    browser.clear()
    browser.browser.get(server.url + "/")
    browser.ready()
    browser.errors()
    yield browser
    for handle in browser.browser.window_handles[1:]:
        browser.browser.switch_to.window(handle)
        browser.browser.close()
    browser.browser.switch_to.window(browser.browser.window_handles[0])
    wrong = browser.errors()
    assert not wrong, wrong


def events(response):
    """Events of a stream by the letter of the specification: every block is comments, or one optional
    event line and one data line, and ends with an empty line."""
    assert response.headers["content-type"] == "text/event-stream"
    text = response.read().decode("utf-8")
    assert text.endswith("\n\n") and "\r" not in text
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        lines = block.split("\n")
        if all(line.startswith(":") for line in lines):
            continue
        assert len(lines) <= 2, block
        name = None
        if len(lines) == 2:
            assert lines[0].startswith("event: "), block
            name = lines[0].removeprefix("event: ")
        assert lines[-1].startswith("data: "), block
        data = lines[-1].removeprefix("data: ")
        found.append((name, data if data == "[DONE]" else json.loads(data)))
    return found
