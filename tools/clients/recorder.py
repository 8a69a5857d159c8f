"""A proxy that forwards to a server on this machine and keeps every exchange.

    recorder.py PORT_OF_THE_SERVER FOLDER    # prints its own port

Each exchange becomes FOLDER/0001.json: method, path, headers, body, status, seconds, and the answer as text.
"""

import http.client
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


class Recorder(ThreadingHTTPServer):
    """Listens on a free port of this machine; `exchanges` lists what was forwarded."""

    daemon_threads = True

    def __init__(self, upstream: int, folder: Path):
        super().__init__(("127.0.0.1", 0), Exchange)
        self.upstream = upstream
        self.folder = folder
        self.exchanges: list[dict] = []
        self.lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def keep(self, exchange: dict) -> None:
        with self.lock:
            self.exchanges.append(exchange)
            path = self.folder / f"{len(self.exchanges):04}.json"
        path.write_text(json.dumps(exchange, indent=1, ensure_ascii=False))


class Exchange(BaseHTTPRequestHandler):
    server: Recorder
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def read_body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def forward(self) -> None:
        started = time.monotonic()
        body = self.read_body()
        try:
            shown = json.loads(body) if body else None
        except ValueError:
            shown = body.decode(errors="replace")
        exchange = {"method": self.command, "path": self.path, "headers": dict(self.headers), "body": shown}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=600)
        answer = b""
        try:
            upstream.request(self.command, self.path, body or None, headers)
            response = upstream.getresponse()
            exchange["status"] = response.status
            exchange["answer_headers"] = dict(response.getheaders())
            self.send_response_only(response.status)
            for name, value in response.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.close_connection = True
            self.end_headers()
            while piece := response.read1(65536):
                answer += piece
                self.wfile.write(piece)
        except OSError as error:
            exchange["failure"] = repr(error)
            self.close_connection = True
        finally:
            upstream.close()
        exchange["seconds"] = round(time.monotonic() - started, 2)
        exchange["answer"] = answer.decode(errors="replace")
        self.server.keep(exchange)

    do_GET = do_POST = do_HEAD = do_OPTIONS = do_PUT = do_DELETE = forward


if __name__ == "__main__":
    recorder = Recorder(int(sys.argv[1]), Path(sys.argv[2]))
    print(recorder.server_port, flush=True)
    recorder.serve_forever()
