"""Pictures in the page, with a small model that sees."""

import base64
import json
from pathlib import Path

import pytest

from conftest import Server
from page_driver import CHROMIUM, DRIVER

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with chromedriver")

CRATES = Path(__file__).parents[3]
DATA = CRATES / "moeflux-image/tests/data"
PICTURE = DATA / "alpha.png"
URL = "data:image/png;base64," + base64.b64encode(PICTURE.read_bytes()).decode()


@pytest.fixture(scope="module")
def seeing():
    server = Server("-m", str(CRATES / "moeflux-engine/tests/towers/qwen3_vl_moe"), "--max-tokens", "8")
    yield server
    assert server.stop() == 0
    assert not any("panicked" in line for line in server.lines), server.lines


@pytest.fixture
def sees(browser, seeing):
    browser.open(seeing.url)
    browser.clear()
    browser.open(seeing.url)
    browser.wait(lambda: "pictures" in browser.text("#abilities"))
    return browser


def give(page, event, *names):
    """Drops or pastes the picture under these names."""
    page.js("""
        const [event, url, names] = arguments;
        const bytes = Uint8Array.from(atob(url.split(",")[1]), c => c.charCodeAt(0));
        const data = new DataTransfer();
        for (const name of names) data.items.add(new File([bytes], name, { type: "image/png" }));
        const target = document.getElementById("question");
        const made = event === "paste" ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })
            : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
        target.dispatchEvent(made);""", event, URL, list(names))


def shown(page, selector):
    """Names of pictures that are drawn, not only there."""
    return page.js("""return [...document.querySelectorAll(arguments[0])]
        .filter(image => image.complete && image.naturalWidth > 0).map(image => image.alt)""", selector)


def test_pictures_are_attached_dropped_pasted_and_kept(sees):
    sees.find("#file-input").send_keys(str(PICTURE))
    sees.wait(lambda: shown(sees, "#files img") == ["alpha.png"])
    give(sees, "drop", "b.png")
    sees.wait(lambda: shown(sees, "#files img") == ["alpha.png", "b.png"])
    give(sees, "paste", "alpha.png")
    sees.wait(lambda: shown(sees, "#files img") == ["alpha.png", "b.png", "alpha.png (2)"])
    sees.click("[title='Remove b.png']")
    names = ["alpha.png", "alpha.png (2)"]
    assert shown(sees, "#files img") == names
    sees.shot("pictures-draft")
    sees.ask("What is it?")
    assert shown(sees, ".user .picture img") == names and sees.count("#files img") == 0
    assert sees.count(".error") == 0
    sees.click(".picture")
    assert sees.find(".picture").get_attribute("aria-expanded") == "true" and sees.is_narrow()
    sees.shot("pictures-large")
    sees.reload()
    sees.wait(lambda: shown(sees, ".user .picture img") == names)
    sees.ask("And now?")
    assert sees.count(".error") == 0
    assert not [line for line in sees.errors() if "favicon" not in line["message"]]


def test_what_is_sent_has_pictures_before_the_text(sees):
    sees.script_model([{"choices": [{"delta": {"content": "Seen."}}]}])
    give(sees, "paste", "one.png")
    sees.wait(lambda: shown(sees, "#files img") == ["one.png"])
    sees.ask("What is it?")
    content = sees.js("return requests.at(-1).messages.at(-1).content")
    assert content == [{"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": "What is it?"}]
    # An edited question keeps them, and so does the next one.
    sees.click(".user [title='Edit']")
    sees.find(".editor textarea").send_keys(" Say it.")
    sees.click(".editor .primary")
    sees.wait(lambda: sees.text(".user .branches") == "2/2")
    sees.wait(sees.is_idle)
    assert sees.js("return requests.at(-1).messages.at(-1).content[0].image_url.url") == URL
    sees.ask("More")
    assert [type(message["content"]) for message in sees.js("return requests.at(-1).messages")] == [list, str, str]


def test_large_pictures_are_made_smaller_and_others_are_refused(sees):
    sent = sees.browser.execute_async_script("""
        const done = arguments[0];
        import(new URL("page/pictures.js", document.baseURI)).then(async pictures => {
            const canvas = new OffscreenCanvas(3000, 2000);
            const context = canvas.getContext("2d");
            const noise = context.createImageData(3000, 2000);
            for (let i = 0; i < noise.data.length; i += 1) noise.data[i] = i % 4 === 3 ? 255 : Math.random() * 256;
            context.putImageData(noise, 0, 0);
            const blob = await canvas.convertToBlob({ type: "image/png" });
            const made = await pictures.readPicture(new File([blob], "noise.png", { type: "image/png" }));
            const image = await createImageBitmap(await (new Response(Uint8Array.from(
                atob(made.image.split(",")[1]), c => c.charCodeAt(0)))).blob());
            done([blob.size, made.image.slice(0, 16), image.width * image.height, made.width]);
        }).catch(error => done(String(error)));""")
    assert sent[0] > 2 << 20 and sent[1] == "data:image/webp;" and sent[3] == 3000, sent
    assert 0.99 * (4 << 20) < sent[2] < 1.01 * (4 << 20), sent
    broken = sees.folder / "broken.png"
    broken.write_bytes(PICTURE.read_bytes()[:20])
    sees.find("#file-input").send_keys(str(broken))
    sees.wait(lambda: "broken.png is no picture" in sees.text("#notices"))
    assert sees.count("#files img") == 0


def test_pictures_are_exported_and_imported(sees):
    give(sees, "paste", "a [b].png")
    sees.wait(lambda: shown(sees, "#files img") == ["a [b].png"])
    sees.ask("What is it?")
    conversation = sees.js("""return (async () => {
        const chats = await import(new URL("page/chats.js", document.baseURI));
        const storage = await import(new URL("page/storage.js", document.baseURI));
        const id = chats.state.open;
        return { ...chats.state.chats.get(id), messages: await storage.messagesOf(id) };
    })()""")
    text = json.dumps({"format": "moeflux-conversations", "version": 1, "conversations": [conversation]})
    sees.clear()
    sees.reload()
    file = sees.folder / "pictures.json"
    file.write_text(text)
    sees.find("#import-input").send_keys(str(file))
    sees.wait(lambda: "1 conversation" in sees.text("#notices"))
    sees.js("location.hash = arguments[0]", conversation["id"])
    sees.reload()
    sees.wait(lambda: shown(sees, ".user .picture img") == ["a [b].png"])
    # What is no picture is left out.
    # The store has them in the order of their ids.
    [question] = [message for message in conversation["messages"] if message["role"] == "user"]
    question["files"] = [{"name": "x", "image": "https://example.com/x.png"},
                         {"name": "y", "image": 'data:image/png;base64,"><script>'}]
    sees.clear()
    file.write_text(json.dumps({"format": "moeflux-conversations", "version": 1, "conversations": [conversation]}))
    sees.reload()
    sees.find("#import-input").send_keys(str(file))
    sees.wait(lambda: "1 conversation" in sees.text("#notices"))
    sees.js("location.hash = arguments[0]", conversation["id"])
    sees.reload()
    sees.wait(lambda: sees.count(".user .body") == 1)
    assert sees.count(".picture") == 0


def test_markdown_has_pictures_at_its_end(sees):
    sees.script_model([{"choices": [{"delta": {"content": "Seen."}}]}])
    give(sees, "paste", "a [b].png", "c.png")
    sees.wait(lambda: sees.count("#files img") == 2)
    sees.ask("What is it?")
    text = sees.browser.execute_async_script("""
        const done = arguments[0];
        const real = URL.createObjectURL;
        URL.createObjectURL = blob => { blob.text().then(done); return real.call(URL, blob); };
        Promise.all(["page/chats.js", "page/transfer.js"].map(path => import(new URL(path, document.baseURI))))
            .then(([chats, transfer]) => transfer.exportMarkdown(chats.state.open));""")
    head, _, rest = text.partition("[picture-1]: ")
    assert "## User\n\n![a \\[b\\].png][picture-1]\n\n![c.png][picture-2]\n\nWhat is it?\n\n## Assistant" in head
    assert rest == f"{URL}\n[picture-2]: {URL}\n" and "base64" not in head
