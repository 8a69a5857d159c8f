"""moeflux under Ray Serve: each replica starts one `moeflux serve` and forwards every request to it.

    serve run serve.yaml

The API is that of `moeflux serve`: all paths, methods, headers and status codes pass through, and streams pass piece
by piece. docs/guide/several-machines.md describes the settings.
"""

import asyncio
import logging
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import aiohttp
from pydantic import BaseModel, Field
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

logger = logging.getLogger("ray.serve")

LISTENING = "listening on "
# Headers of one connection. The body's length stays: moeflux answers a HEAD request with it.
HOP_BY_HOP = {"connection", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}


class Settings(BaseModel):
    """The part `args` of an application in serve.yaml."""

    binary: str = Field("moeflux", description="the program, by its path or its name on PATH")
    arguments: list[str] = Field([], description="of `moeflux serve`, without an address")
    log_folder: str = Field("/tmp/moeflux-logs", description="one file per replica")
    start_seconds: float = Field(600, description="how long opening the model may take")


@serve.deployment
class Moeflux:
    """One server process, which ends with this replica; this replica ends with the process."""

    def __init__(self, settings: Settings):
        folder = Path(settings.log_folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{serve.get_replica_context().replica_id.unique_id}.log"
        self.session = None
        self.closing = False
        self.process = start_process(settings, self.log)
        try:
            self.url = wait_for_address(self.process, self.log, settings.start_seconds)
        except Exception:
            self.process.kill()
            raise
        logger.info("moeflux runs as process %s at %s, log %s", self.process.pid, self.url, self.log)
        threading.Thread(target=self.leave_after_process, daemon=True).start()

    async def __call__(self, request: Request) -> Response:
        """Forwards one request. Where the client leaves, Serve cancels this, which closes the connection to moeflux."""
        url = self.url + request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP]
        try:
            upstream = await self.connection().request(
                request.method, url, headers=headers, data=await request.body(), allow_redirects=False
            )
            if "text/event-stream" not in upstream.headers.get("content-type", ""):
                # A whole answer is read before its status goes out, so that a process that dies halfway is an error.
                async with upstream:
                    return pass_headers(Response(await upstream.read(), upstream.status), upstream)
        except aiohttp.ClientError as error:
            return unavailable(f"the replica's moeflux does not answer: {error}")
        return pass_headers(StreamingResponse(pieces(upstream), upstream.status), upstream)

    async def check_health(self) -> None:
        """Serve replaces a replica after this fails several times in a row."""
        if self.process.poll() is not None:
            raise RuntimeError(f"moeflux ended with {self.process.returncode}: see {self.log}")
        async with self.connection().get(self.url + "/health", timeout=aiohttp.ClientTimeout(total=5)) as answer:
            if answer.status != 200:
                raise RuntimeError(f"moeflux answers /health with {answer.status}: see {self.log}")

    def leave_after_process(self) -> None:
        """Ends this replica soon after its process.

        A replica without a process fails fast, is therefore the least busy one, and would draw most requests until
        the health check counts enough failures. The pause lets the answers to interrupted requests out.
        """
        self.process.wait()
        if not self.closing:
            logger.error("moeflux ended with %s: see %s", self.process.returncode, self.log)
            time.sleep(1)
            os._exit(1)

    def connection(self) -> aiohttp.ClientSession:
        """The session, made on the event loop that uses it. Answers may take hours, and their bytes stay as they are."""
        if self.session is None:
            self.session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
                auto_decompress=False,
            )
        return self.session

    async def __del__(self):
        self.closing = True
        if self.session:
            await self.session.close()
        self.process.terminate()
        try:
            await asyncio.to_thread(self.process.wait, 15)
        except subprocess.TimeoutExpired:
            self.process.kill()


def start_process(settings: Settings, log: Path) -> subprocess.Popen:
    """Starts moeflux on a free port. On Linux the kernel ends it with this process, even where that is killed."""
    binary = shutil.which(settings.binary)
    if binary is None:
        raise FileNotFoundError(f"binary: {settings.binary} is no program on this machine")
    command = [binary, "serve", *settings.arguments, "--addr", "127.0.0.1:0"]
    if setpriv := shutil.which("setpriv"):
        command = [setpriv, "--pdeathsig", "TERM", *command]
    with log.open("ab") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)


def wait_for_address(process: subprocess.Popen, log: Path, seconds: float) -> str:
    """Waits until moeflux has opened its model and listens."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        text = log.read_text(errors="replace")
        if address := address_in(text):
            return address
        if process.poll() is not None:
            raise RuntimeError(f"moeflux ended with {process.returncode}: {text[-2000:]}")
        time.sleep(0.1)
    raise TimeoutError(f"moeflux did not listen within {seconds:.0f} s (start_seconds): see {log}")


def address_in(log: str) -> str | None:
    """The address that moeflux logs once it listens, from a whole line."""
    for line in log.splitlines(keepends=True):
        if LISTENING in line and line.endswith("\n"):
            return line.split(LISTENING, 1)[1].split()[0]
    return None


def pass_headers(answer: Response, upstream: aiohttp.ClientResponse) -> Response:
    """Gives an answer the headers of moeflux, Retry-After among them, in place of its own."""
    answer.raw_headers = [
        (name.lower(), value) for name, value in upstream.raw_headers if name.decode().lower() not in HOP_BY_HOP
    ]
    return answer


async def pieces(upstream: aiohttp.ClientResponse):
    """A stream's bytes as they come. Leaving early closes the connection, which ends the answer in moeflux."""
    async with upstream:
        async for piece in upstream.content.iter_any():
            yield piece


def unavailable(message: str) -> Response:
    """An error that clients of OpenAI's and of Anthropic's API read, and after which they ask again."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": message, "param": None, "code": None}}
    return JSONResponse(error, 503, {"retry-after": "1"})


def app(settings: Settings) -> serve.Application:
    """What serve.yaml names as `import_path`."""
    return Moeflux.bind(settings)
