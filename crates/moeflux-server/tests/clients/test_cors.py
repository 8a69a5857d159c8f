"""Pages of other origins in headless Chromium, with the headers that the official SDKs send."""

import http.server
import threading

import pytest

from conftest import MODEL, Server
from page_driver import CHROMIUM, DRIVER, Page

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with chromedriver")

OPENAI = {"authorization": "Bearer none", "x-stainless-lang": "js", "x-stainless-retry-count": "0"}
ANTHROPIC = {"x-api-key": "none", "anthropic-version": "2023-06-01",
             "anthropic-dangerous-direct-browser-access": "true"}
CALL = """
const [url, headers, body, done] = arguments;
fetch(url, {method: 'POST', headers: {...headers, 'content-type': 'application/json'}, body: JSON.stringify(body)})
  .then(async reply => done([reply.status, (await reply.text()).length > 0, reply.headers.get('x-content-type-options')]))
  .catch(error => done(String(error)));
"""


class Empty(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, *args):
        pass


@pytest.fixture
def elsewhere():
    """The origin of another server, with an empty page."""
    pages = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{pages.server_port}"
    pages.shutdown()


def test_pages_of_allowed_origins_use_the_apis(elsewhere, tmp_path):
    page = Page(tmp_path)
    message = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}

    def call(server, path, headers):
        return page.browser.execute_async_script(CALL, server.url + path, headers, message)

    try:
        page.browser.get(elsewhere)
        server = Server("--cors-origin", "app://", "--cors-origin", elsewhere)
        for path, headers in [("/v1/chat/completions", {}), ("/v1/chat/completions", OPENAI),
                              ("/v1/messages", ANTHROPIC)]:
            assert call(server, path, headers) == [200, True, "nosniff"], headers
        (tmp_path / "page.html").write_text("<!doctype html><title>a file</title>")
        page.browser.get((tmp_path / "page.html").as_uri())
        assert "Failed to fetch" in call(server, "/v1/messages", ANTHROPIC)
        assert server.stop() == 0
        server = Server("--cors-origin", "null")
        assert call(server, "/v1/messages", ANTHROPIC) == [200, True, "nosniff"], page.browser.get_log("browser")
        page.browser.get(elsewhere)
        assert "Failed to fetch" in call(server, "/v1/messages", ANTHROPIC)
        assert server.stop() == 0
    finally:
        page.browser.quit()
