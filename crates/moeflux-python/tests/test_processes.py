"""Processes: the command, interrupts, forks, children, memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import moeflux
from conftest import DEMO, QUESTION

ON_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals and /proc are those of Linux")


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a script; its `DEMO` is the demo model."""
    script = f"DEMO = {str(DEMO)!r}\n" + textwrap.dedent(code)
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def moeflux_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "moeflux", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_answers() -> None:
    version = moeflux_command("--version")
    assert (version.returncode, version.stdout) == (0, f"moeflux {moeflux.__version__}\n")
    answer = moeflux_command("run", "--model", str(DEMO), "-q", "--temperature", "0", "--max-tokens", "9", "Hello")
    assert answer.returncode == 0 and answer.stdout.strip() and answer.stderr == ""


def test_exit_codes_are_those_of_the_binary() -> None:
    wrong = moeflux_command("run", "--wheels", "4")
    assert wrong.returncode == 2 and wrong.stderr.startswith("moeflux: ") and wrong.stderr.count("\n") == 1
    nowhere = moeflux_command("inspect", "--model", "./nowhere")
    assert nowhere.returncode == 2 and "nowhere" in nowhere.stderr
    assert moeflux_command().returncode == 2


@ON_LINUX
def test_a_closed_pipe_ends_the_command_without_a_word() -> None:
    command = f"{sys.executable} -m moeflux models --help | head -n 1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@ON_LINUX
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_command(number: signal.Signals) -> None:
    # At --thinking-budget the answer goes on and on; a server does as well.
    command = [sys.executable, "-m", "moeflux", "run", "--model", str(DEMO), "--temperature", "1.5"]
    command += ["--min-p", "0", "--top-p", "1", "--top-k", "0", "--max-tokens", "4000", "Hello"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert "Traceback" not in errors
    assert process.returncode in (-number, 128 + number, 0), (process.returncode, errors)


def test_the_import_is_quick() -> None:
    code = """
        import sys, time
        start = time.process_time()
        import moeflux
        took = time.process_time() - start
        assert "numpy" not in sys.modules and "asyncio" not in sys.modules and "pydantic" not in sys.modules
        print(took)
    """
    took = min(float(run_python(code).stdout) for _ in range(3))
    # Of the processor, which a busy machine does not change.
    assert took < 0.1, f"{took:.3f} s"


@ON_LINUX
@pytest.mark.parametrize(
    "call",
    [
        "model.generate('The', **LONG)",
        "list(model.stream('The', **LONG))",
        "model.generate_batch(['The'] * 50, **LONG)",
        "asyncio.run(model.agenerate('The', **LONG))",
        "[model.score([[5] * 1500] * 50) for _ in range(50)]",
        "[model.logits([5] * 1500) for _ in range(100)]",
        "[model.tokenizer.encode('a word ' * 200_000) for _ in range(100)]",
    ],
)
def test_an_interrupt_ends_what_is_computed(call: str) -> None:
    code = f"""
        import asyncio, os, signal, threading, time
        import moeflux
        model = moeflux.load(DEMO, device="cpu", ctx=2048, sessions=2)
        model.generate("The", max_tokens=1)
        # Without an end of the text an answer is as long as the context.
        LONG = {{"temperature": 1, "logit_bias": {{token: -100 for token in model.tokenizer.eos_token_ids}}}}
        begun = time.monotonic() + 0.2
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            {call}
        except KeyboardInterrupt:
            print("after", time.monotonic() - begun)
        while model.stats().running:
            time.sleep(0.01)
        print(model.generate("The", temperature=0, max_tokens=2).usage.completion_tokens)
    """
    ended = run_python(code)
    words = ended.stdout.split()
    assert ended.returncode == 0 and words[0] == "after" and words[2] == "2", ended
    assert float(words[1]) < 1.0, ended.stdout


@ON_LINUX
def test_an_interrupt_ends_loading() -> None:
    code = """
        import os, signal
        import moeflux
        def interrupt(*_):
            os.kill(os.getpid(), signal.SIGINT)
        try:
            moeflux.load(DEMO, device="cpu", progress=interrupt)
        except KeyboardInterrupt:
            print("interrupted")
        print(moeflux.load(DEMO, device="cpu", ctx=512).family)
    """
    ended = run_python(code)
    assert ended.stdout.split()[0] == "interrupted" and len(ended.stdout.split()) == 2, ended


@ON_LINUX
def test_a_forked_process_is_refused_and_does_not_hang() -> None:
    code = """
        import os, sys, warnings
        warnings.simplefilter("ignore")
        import moeflux
        model = moeflux.load(DEMO, device="cpu", ctx=512)
        stream = model.stream("The", max_tokens=200)
        session = model.session()
        child = os.fork()
        if child == 0:
            for call in (
                lambda: model.generate("The"),
                lambda: next(stream),
                lambda: session.position,
                lambda: moeflux.load(DEMO),
                model.close,
            ):
                try:
                    call()
                except moeflux.Error as error:
                    assert error.kind == "process" and "spawn" in str(error), error
                else:
                    os._exit(1)
            del model, stream, session
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), model.generate("The", max_tokens=2).usage.completion_tokens > 0)
    """
    ended = run_python(code)
    assert ended.stdout.split() == ["0", "True"], ended


def _answer_in_child(path: str, texts: multiprocessing.SimpleQueue[str]) -> None:
    with moeflux.load(path, device="cpu", ctx=512) as loaded:
        texts.put(loaded.chat(QUESTION, temperature=0, max_tokens=8).text)


def test_a_process_that_was_spawned_has_a_model_of_its_own(model: moeflux.Model) -> None:
    context = multiprocessing.get_context("spawn")
    texts = context.SimpleQueue()
    process = context.Process(target=_answer_in_child, args=(str(DEMO), texts))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert texts.get() == model.chat(QUESTION, temperature=0, max_tokens=8).text


@ON_LINUX
def test_templates_are_rendered_in_a_child_with_limits(tmp_path: Path) -> None:
    for file in DEMO.rglob("*"):
        if file.is_file():
            target = tmp_path / file.relative_to(DEMO)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(file.read_bytes())
    template = tmp_path / "chat_template.jinja"
    hostile = "{%- set ns = namespace(s='x') %}{%- for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"
    n_bytes = template.stat().st_size
    template.write_text(("{% if messages[0]['content'] == 'grow' %}" + hostile + "{% endif %}") + template.read_text())
    manifest = tmp_path / "moeflux.json"
    manifest.write_text(manifest.read_text().replace(f'"bytes": {n_bytes}', f'"bytes": {template.stat().st_size}'))
    with moeflux.load(tmp_path, device="cpu", ctx=512) as model:
        with pytest.raises(moeflux.Error):
            model.chat([{"role": "user", "content": "grow"}], max_tokens=4)
        assert model.chat(QUESTION, max_tokens=4).text


def test_a_process_ends_while_answers_are_made() -> None:
    code = """
        import asyncio, threading
        import moeflux
        model = moeflux.load(DEMO, device="cpu", ctx=2048)
        streams = [model.stream("The", temperature=1, min_p=0.0, max_tokens=1500) for _ in range(3)]
        next(streams[0])
        asyncio.run(model.agenerate("The", max_tokens=2))
        threading.Thread(target=lambda: list(streams[1]), daemon=True).start()
        print("end")
    """
    ended = run_python(code)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "end", ""), ended


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@ON_LINUX
def test_memory_stays_flat_over_answers(model: moeflux.Model) -> None:
    n_answers = int(os.environ.get("MOEFLUX_PY_ANSWERS", "600"))

    def answers(n: int) -> None:
        for start in range(0, n, 50):
            prompts = [f"Number {i} of" for i in range(start, start + 50)]
            model.generate_batch(prompts, temperature=0, max_tokens=3)

    answers(300)
    before, start = resident_bytes(), time.monotonic()
    answers(n_answers)
    grown = resident_bytes() - before
    assert grown < 12e6, f"{grown} bytes more after {n_answers} answers, in {time.monotonic() - start:.0f} s"
