"""`moeflux chat` as a person at a terminal has it: keys go in, a screen comes out."""

import json
import os
import re
import tempfile
import time

import pexpect
import pyte
import pytest

from conftest import until

WAIT = 60  # seconds, for machines that do other things, too
UP, CTRL_C, CTRL_D, ALT_ENTER = "\x1b[A", "\x03", "\x04", "\x1b\r"
PROMPT = "you>"
# Draws are no guesses that the demo model keeps to itself.
DRAWN = ["--temperature", "0.1"]
# Hot enough that an answer does not end by itself.
ENDLESS = ["--temperature", "5", "--ctx", "4096", "--max-tokens", "4000"]


class Screen(pyte.HistoryScreen):
    """As terminals are: they can go back to a saved place more than once."""

    def restore_cursor(self):
        saved = self.savepoints[-1:]
        super().restore_cursor()
        self.savepoints[:] = saved


class Chat:
    """A shell's view of the program: its terminal, which outlives it."""

    def __init__(self, home, *args, width=80, height=24):
        env = {k: v for k, v in os.environ.items() if not k.startswith("MOEFLUX_")}
        env |= {"HOME": str(home), "TERM": "xterm-256color"}
        env["MOEFLUX_CACHE"] = str(home / "cache")
        self.screen = Screen(width, height, history=5000, ratio=0.5)
        self.stream = pyte.ByteStream(self.screen)
        # A shell in between keeps the terminal open when the program has ended.
        command = ["-c", 'trap : INT; trap "" HUP; stty -g; "$0" chat "$@"; echo "left-with-code:$?"; stty -g; read end',
                   os.environ["MOEFLUX_BIN"], *args]
        self.child = pexpect.spawn("/bin/sh", command, env=env, dimensions=(height, width),
                                   timeout=WAIT)
        self.raw = b""
        self.is_leaving = False
        self.until(lambda: self.prompts() == 1)

    def read(self):
        try:
            got = self.child.read_nonblocking(65536, timeout=0.05)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return
        self.raw += got
        # Who asks where the cursor is gets an answer from real terminals.
        self.stream.feed(got)
        for _ in range(got.count(b"\x1b[6n")):
            cursor = self.screen.cursor
            self.child.send(f"\x1b[{cursor.y + 1};{cursor.x + 1}R")

    def until(self, condition):
        deadline = time.monotonic() + WAIT
        while not condition():
            assert time.monotonic() < deadline and (self.is_leaving or b"left-with-code:" not in self.raw), \
                self.text()
            self.read()

    def lines(self):
        """All lines, those that have left the screen, too."""
        past = ["".join(row[x].data for x in range(self.screen.columns)).rstrip()
                for row in self.screen.history.top]
        return past + [line.rstrip() for line in self.screen.display]

    def text(self):
        return "\n".join(self.lines())

    def has(self, words):
        """Whether the screen shows words, wherever its lines are broken."""
        return "".join(words.split()) in "".join(self.text().split())

    def prompts(self):
        return sum(line.startswith(PROMPT) for line in self.lines())

    def waits(self):
        """Whether the last thing on the screen is a prompt without a text."""
        return [line for line in self.lines() if line][-1] == PROMPT

    def type(self, text):
        self.child.send(text)

    def ask(self, text):
        """Gives a line and waits for the next prompt."""
        n = self.prompts()
        self.type(text + "\r")
        self.until(lambda: self.prompts() > n and self.waits())

    def shown(self, words):
        self.until(lambda: self.has(words))

    def leave(self, key=CTRL_D):
        """Ends it, and checks what it leaves behind."""
        self.is_leaving = True
        self.type(key)
        self.until(lambda: b"left-with-code:" in self.raw)
        self.until(lambda: len(re.findall(rb"^\s*([0-9a-f]+:[0-9a-f:]+)\s*$", self.raw, re.M)) == 2)
        before, after = re.findall(rb"^\s*([0-9a-f]+:[0-9a-f:]+)\s*$", self.raw, re.M)
        assert before == after and b"left-with-code:0" in self.raw, self.text()
        # Whatever was switched on is off again: pasting in brackets, a hidden cursor.
        assert self.raw.rfind(b"\x1b[?2004h") < self.raw.rfind(b"\x1b[?2004l")
        assert not self.screen.cursor.hidden
        # The model may write the word, so a panic is recognised by its source location.
        assert not re.search(rb"panicked at \S*(crates|registry|rustc|library)/\S+\.rs:\d+", self.raw)
        self.close()

    def close(self):
        """Takes the terminal away."""
        with open(f"/proc/{self.child.pid}/task/{self.child.pid}/children") as children:
            pids = children.read().split()
        self.child.close(force=True)
        # The program ends as well, even if its parent had SIGHUP ignored.
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


@pytest.fixture
def home(tmp_path):
    # The demo model is unpacked once for all tests.
    shared = os.path.join(tempfile.gettempdir(), "moeflux-clients-chat")
    os.makedirs(shared, exist_ok=True)
    (tmp_path / "cache").mkdir()
    for name in os.listdir(shared):
        if name.startswith("demo-") and "partial" not in name:
            os.symlink(os.path.join(shared, name), tmp_path / "cache" / name)
    yield tmp_path
    for path in (tmp_path / "cache").glob("demo-*"):
        target = os.path.join(shared, path.name)
        if not path.is_symlink() and not os.path.exists(target):
            os.rename(path, target)


@pytest.mark.parametrize("width, height", [(80, 24), (40, 20)])
def test_a_conversation(home, width, height):
    chat = Chat(home, *DRAWN, width=width, height=height)
    chat.ask("What is 23 + 45?")
    assert chat.has("68") and chat.has("tok/s") and chat.waits()
    # One line of figures, whatever the width.
    figures = [line for line in chat.lines() if "tok/s" in line]
    assert len(figures) == 1 and len(figures[0]) <= width, figures
    chat.ask("/stats")
    assert chat.has("mapped") and chat.has("planned")
    chat.ask("/help")
    for command in ["/regenerate", "/save FILE", "/load FILE", "/system TEXT", "/quit", "Ctrl-C"]:
        assert chat.has(command), command
    chat.ask("/nonsense")
    assert chat.has("/nonsense: no such command, /help lists them")
    chat.ask("/system You are brief.")
    n = chat.text().count("tok/s")
    chat.ask("/regenerate")
    assert chat.text().count("tok/s") > n
    chat.ask("/save /nowhere/talk.json")
    assert chat.has("the folder /nowhere does not exist")
    file = home / "talk.json"
    chat.ask("/save ~/talk.json")
    messages = json.loads(file.read_text())["messages"]
    assert [it["role"] for it in messages] == ["system", "user", "assistant"]
    chat.ask("/clear")
    chat.ask("/regenerate")
    assert chat.has("there is no answer to make again")
    chat.ask(f"/load {file}")
    assert chat.has("3 messages")
    chat.ask("/load /nowhere.json")
    assert chat.has("/nowhere.json: no such file")
    # An empty line is no question.
    n = chat.text().count("tok/s")
    chat.ask("")
    assert chat.text().count("tok/s") == n
    chat.leave()


def test_saving_asks_before_it_overwrites(home):
    file = home / "talk.json"
    file.write_text("mine")
    chat = Chat(home)
    chat.ask("What is 23 + 45?")
    for n, (answer, outcome) in enumerate([("n", "nothing was saved"), ("y", "kept in")], 1):
        chat.type("/save ~/talk.json\r")
        chat.until(lambda: chat.text().count("(y/n)") == n)
        chat.ask(answer)
        assert chat.has(outcome)
        assert (file.read_text() == "mine") == (answer == "n")
    # The question of a file is no question to the model, and no line of the history.
    chat.type(UP)
    chat.until(lambda: chat.text().count(f"{PROMPT} /save") == 3)
    chat.type(CTRL_C)
    chat.until(chat.waits)
    chat.leave()


def test_tab_completes_commands_and_files(home):
    (home / "talks").mkdir()
    for name in ["one.json", "other.json", "red\x1b[31m.json"]:
        (home / "talks" / name).write_text("{}")
    chat = Chat(home)
    chat.type("/sa\t")
    chat.until(lambda: f"{PROMPT} /save" in chat.text())
    chat.type("~/ta\t")
    chat.shown("/save ~/talks/")
    chat.type("on\t")
    chat.shown("/save ~/talks/one.json")
    chat.type(CTRL_C)
    chat.until(chat.waits)
    chat.type("/set te\t0.5\r")
    chat.shown("temperature = 0.5")
    chat.type("/load ~/talks/\t")
    chat.shown("other.json")
    assert b"\x1b[31m.json" not in chat.raw
    chat.type(CTRL_C + CTRL_C)
    chat.until(chat.waits)
    chat.leave()


def test_the_demo_says_what_it_is_in_place_of_a_guess(home):
    chat = Chat(home)
    chat.ask("hi")
    assert chat.has("I am a demo of 21 M parameters, and could only guess here.")
    assert not chat.has("tool_call") and chat.text().count("tok/s") == 0
    chat.ask("What is 23 + 45?")
    assert chat.has("68")
    chat.leave()


def test_lines_go_on(home):
    chat = Chat(home, *DRAWN)
    chat.type("What is\\\r")
    chat.shown(":::")
    chat.ask("23 + 45?")
    chat.type("What is" + ALT_ENTER + "4 + 3?")
    chat.until(lambda: chat.text().count(":::") == 2)
    chat.ask("")
    chat.type("\x1b[200~What is\n3 + 5?\x1b[201~")
    chat.until(lambda: chat.text().count(":::") == 3)
    chat.ask("")
    chat.ask("/save ~/talk.json")
    said = [it["content"] for it in json.loads((home / "talk.json").read_text())["messages"]]
    assert said[::2] == ["What is\n23 + 45?", "What is\n4 + 3?", "What is\n3 + 5?"]
    chat.leave()


def test_a_history_outlives_the_program(home):
    chat = Chat(home)
    chat.ask("What is 23 + 45?")
    chat.ask("/help")
    chat.type(UP)
    chat.until(lambda: chat.text().count(f"{PROMPT} /help") == 2)
    chat.type(UP)
    chat.until(lambda: chat.text().count(f"{PROMPT} What is 23 + 45?") == 2)
    chat.ask("")
    assert chat.text().count("tok/s") == 2
    # Not even a program that is killed forgets.
    chat.child.sendline("unfinished")
    chat.until(lambda: chat.has("unfinished"))
    chat.close()
    chat = Chat(home)
    chat.type(UP)
    chat.shown(f"{PROMPT} unfinished")
    chat.type(UP)
    chat.shown(f"{PROMPT} What is 23 + 45?")
    chat.type(CTRL_C)
    chat.until(chat.waits)
    assert chat.has("Ctrl-D or /quit leaves")
    chat.leave()


def stop_an_answer(chat):
    n_stopped = chat.text().count("(stopped)")
    for i in range(20):
        before = chat.prompts()
        # Asked the same again, it would give the same answer again.
        chat.type(f"Tell story {i}.\r")
        has_ended = lambda: chat.prompts() > before and chat.waits()
        # The figures are there while the answer is made; even a hot one may end at once.
        chat.until(lambda: chat.has("tok/s, Ctrl-C stops") or has_ended())
        if not has_ended():
            chat.type(CTRL_C)
            chat.until(has_ended)
        if chat.text().count("(stopped)") > n_stopped:
            return
        # The answer was faster than the key.
        chat.ask("/undo")
    raise AssertionError(chat.text())


@pytest.mark.parametrize("width, height", [(80, 24), (40, 20)])
def test_ctrl_c_stops_the_answer_and_not_the_program(home, width, height):
    chat = Chat(home, *ENDLESS, width=width, height=height)
    stop_an_answer(chat)
    stop_an_answer(chat)
    # Nothing is left of them.
    assert not re.search(r"^\d+ tokens, ", chat.text(), re.M) and not chat.has("Ctrl-C stops")
    chat.ask("/save ~/talk.json")
    messages = json.loads((home / "talk.json").read_text())["messages"]
    assert [it["role"] for it in messages] == ["user", "assistant"] * 2
    assert all(it["content"] for it in messages)
    # At an empty prompt it only tells how to leave.
    n = chat.prompts()
    chat.type(CTRL_C)
    chat.until(lambda: chat.prompts() == n + 1 and chat.waits())
    assert chat.has("Ctrl-D or /quit leaves")
    chat.leave("/quit\r")


def test_what_a_model_writes_reaches_the_screen_whole(home):
    chat = Chat(home, "--temperature", "5", "--seed", "7", "--max-tokens", "300", "--ctx", "4096",
                "--plain", width=40, height=20)
    chat.ask("Tell a story.")
    chat.ask("/save ~/talk.json")
    said = json.loads((home / "talk.json").read_text())["messages"][1]["content"]
    # The status below the text has taken nothing of it away. Characters of two columns break
    # lines early, and what is no character is not shown.
    plain = re.sub(r"[^\x21-\x7e]+", "", said)
    screen = re.sub(r"[^\x21-\x7e]+", "", chat.text())
    assert len(plain) > 200 and plain in screen
    chat.leave()
