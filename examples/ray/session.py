"""How the requests of a batch job reach one or several servers.

`HttpRequestProcessorConfig` takes a `session_factory`, whose sessions it calls as `await session.post(...)`. With
aiohttp's own session it waits for each answer of a batch before it sends the next request, counts a server's own error
(500) as an answer, ignores Retry-After, and gives up on answers that take 5 minutes. These sessions do otherwise.
"""

import asyncio
import itertools
import json
import random
import time
from dataclasses import dataclass

import aiohttp

AGAIN = {408, 409, 429, 500, 502, 503, 504}
# Seconds for which a server is not asked after a broken connection.
REST = 5
NO_ANSWER = {"type": "no_answer"}


class Answer:
    """The part of aiohttp's responses that Ray reads, of an answer that has come whole."""

    def __init__(self, body: dict):
        self.body = body
        # A status that Ray does not ask again for: that was done here.
        self.status = 200
        self.reason = "OK"

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def json(self) -> dict:
        return self.body


@dataclass
class Server:
    """One address, and what the requests so far say of it."""

    url: str
    under_way: int = 0
    rests_until: float = 0
    """After a broken connection it is not asked for a while."""


class Session:
    """Sends a request when `post` is called, to the server that has the fewest, and again until one answers.

    `at_once` bounds the requests of one worker that a server has; `patience` is how many seconds after its first
    failure a request is sent again for. Then its answer is `{"error": ...}`, as it is for a request that a server
    refuses.
    """

    def __init__(self, urls: list[str], at_once: int, patience: float):
        self.servers = [Server(url) for url in urls]
        self.at_once = at_once
        self.patience = patience
        self.asked: set[asyncio.Task] = set()

    async def __aenter__(self):
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_connect=10)
        )
        return self

    async def __aexit__(self, *_):
        for task in self.asked:
            task.cancel()
        await asyncio.gather(*self.asked, return_exceptions=True)
        await self.session.close()

    def post(self, _url: str, *, headers: dict, data: str) -> asyncio.Task:
        task = asyncio.create_task(self.ask(headers, data))
        self.asked.add(task)
        return task

    async def ask(self, headers: dict, data: str) -> Answer:
        until = None
        for attempt in itertools.count():
            server = await self.free_server()
            server.under_way += 1
            try:
                async with self.session.post(server.url, headers=headers, data=data) as response:
                    text = await response.text()
                    if response.status not in AGAIN:
                        return Answer(read_answer(response.status, text))
                    failure = f"{response.status}: {text[:500]}"
                    wait = wait_after(response, attempt)
            except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                # Another server is asked at once.
                failure, wait = f"{type(error).__name__}: {error}", 0
                server.rests_until = time.monotonic() + REST
            finally:
                server.under_way -= 1
            until = until or time.monotonic() + self.patience
            if time.monotonic() + wait > until:
                return Answer({"error": {"message": failure, **NO_ANSWER}})
            await asyncio.sleep(wait)

    async def free_server(self) -> Server:
        """Waits for a server with room, and takes the one with the fewest requests."""
        while True:
            now = time.monotonic()
            free = [server for server in self.servers if server.under_way < self.at_once and server.rests_until <= now]
            if free:
                return min(free, key=lambda server: server.under_way)
            await asyncio.sleep(0.05)


def wait_after(response: aiohttp.ClientResponse, attempt: int) -> float:
    """Seconds until a request is sent again: what the server says, else longer each time, and never all at once."""
    seconds = seconds_of(response.headers.get("retry-after")) or min(0.5 * 2**attempt, 8)
    return seconds * random.uniform(1, 1.5)


def read_answer(status: int, text: str) -> dict:
    """The body of an answer. What is no JSON object came from something else than a model's server."""
    try:
        body = json.loads(text)
        if isinstance(body, dict):
            return body
    except ValueError:
        pass
    return {"error": {"message": f"{status}: {text[:500]}", **NO_ANSWER}}


def seconds_of(retry_after: str | None) -> float:
    """The seconds that Retry-After names; 0 where it is missing or a date."""
    try:
        return float(retry_after or 0)
    except ValueError:
        return 0
