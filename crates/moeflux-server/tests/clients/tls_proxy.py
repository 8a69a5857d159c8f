"""A proxy with TLS in front of a server, under a path."""

import http.client
import http.server
import shutil
import ssl
import subprocess
import tempfile
import threading
from urllib.parse import urlsplit


class TlsProxy:
    """Takes requests for `https://localhost:PORT/PATH/...` to the server, as reverse proxies do."""

    def __init__(self, target, path):
        self.folder = tempfile.mkdtemp()
        certificate = f"{self.folder}/certificate.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-keyout", certificate, "-out", certificate + ".crt"],
                       check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate + ".crt", certificate)
        handler = type("Handler", (Handler,), {"target": urlsplit(target), "path_prefix": path})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://localhost:{self.server.server_port}"
        handler.host = f"localhost:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        shutil.rmtree(self.folder)


class Handler(http.server.BaseHTTPRequestHandler):
    """Passes a request on, and its reply back as it comes."""

    def do_GET(self):
        self.forward()

    def do_POST(self):
        self.forward()

    def log_message(self, *_):
        pass

    def forward(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else None
        dropped = {"connection", "host", "accept-encoding", "content-length"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        headers |= {"Host": self.host, "X-Forwarded-Proto": "https", "X-Forwarded-Host": self.host}
        connection = http.client.HTTPConnection(self.target.hostname, self.target.port)
        try:
            connection.request(self.command, self.path.removeprefix(self.path_prefix), body, headers)
            reply = connection.getresponse()
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            self.end_headers()
            while piece := reply.read1(65536):
                self.wfile.write(piece)
                self.wfile.flush()
        except OSError:
            # The browser has gone.
            pass
        finally:
            connection.close()
