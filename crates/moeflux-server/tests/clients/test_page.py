"""The page in headless Chromium. Screenshots go to MOEFLUX_SCREENSHOTS, if that is set."""

import json
import time

import pytest
from selenium.webdriver.common.keys import Keys

from conftest import Server
from page_driver import CHROMIUM, DRIVER
from tls_proxy import TlsProxy

QUESTION = "What does `Vec::push` do?"

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with chromedriver")


def conversation(id, *texts, title="Stored", age=0):
    """A conversation as the page stores it: questions and answers in turn."""
    now = int(time.time() * 1000) - age
    messages = []
    for i, text in enumerate(texts):
        parent = f"{id}-{i - 1}" if i else None
        messages.append({"id": f"{id}-{i}", "chat": id, "parent": parent, "created": now + i,
                         "role": "assistant" if i % 2 else "user", "content": text, "state": "done"})
    return {"id": id, "title": title, "created": now, "updated": now, "leaf": messages[-1]["id"],
            "messages": messages}


RICH = """# Title

Some *soft* and **strong** `code <b>`, $E = mc^2$ and \\( a^2 \\).

```rust
fn main() { let text = "a line of code that is longer than the screen of any phone in portrait"; }
```

$$\\int_0^1 x\\,dx = \\frac{1}{2}$$

| column one | column two | column three | column four | column five |
|---|---:|---|---|---|
| extraordinarily | incomprehensible | characteristically | `unbreakable` | misunderstanding |

- [x] done
- [ ] todo

<img src=x onerror="window.injected=1"> <script>window.injected=1</script> [a](javascript:window.injected=1)
[b](https://example.com/x) ![c](https://example.com/x.png)
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_a_conversation(page, size, scheme):
    page.resize(size, scheme)
    page.wait(lambda: page.text("#model-name") == "moeflux-demo")
    page.shot(f"empty-{size}-{scheme}")
    assert "Appends an element" in page.ask(QUESTION)
    assert "tok/s" in page.text(".assistant .foot")
    page.wait(lambda: "First token" in page.text("#figures") and "of 4,096" in page.text("#figures"))
    assert page.text("#title") == QUESTION and page.is_narrow()
    page.put(conversation("rich", "How?", RICH))
    page.wait(lambda: page.count("math") == 3)
    assert page.is_narrow()
    page.shot(f"rich-{size}-{scheme}")
    page.click("#toggle-facts")
    page.wait(lambda: "MiB" in page.text("#memory") and "32" in page.text("#model"))
    page.shot(f"figures-{size}-{scheme}")
    page.click("#close-facts")
    page.click("#open-settings")
    assert page.find("[name=temperature]").get_attribute("placeholder").startswith("default ")
    page.shot(f"settings-{size}-{scheme}")


def test_markup_is_rendered_and_none_is_injected(page):
    page.put(conversation("rich", "How? <b>", RICH))
    page.wait(lambda: page.count("math") == 3)
    body = ".assistant .body"
    assert page.text(".user .body") == "How? <b>"
    assert page.text(f"{body} h3") == "Title" and page.count(f"{body} .code .k") == 2
    assert page.js("return window.injected") is None
    assert page.count(f"{body} img, {body} script") == 0
    assert '<img src=x onerror="window.injected=1">' in page.text(body)
    links = [link.get_attribute("href") for link in page.all(f"{body} a")]
    assert links == ["https://example.com/x", "https://example.com/x.png"]
    rel = {link.get_attribute("rel") for link in page.all(f"{body} a")}
    assert rel == {"noopener noreferrer"}


def test_tables_scroll_on_a_phone_and_keep_words_whole(page):
    page.resize("phone", "light")
    page.put(conversation("rich", "How?", RICH))
    page.wait(lambda: page.count(".table td") == 5)
    scrolls = "const box = document.querySelector('.table'); return box.scrollWidth > box.clientWidth"
    assert page.js(scrolls) and page.is_narrow()
    # The text of a cell that is one word has one box, or the word is broken.
    boxes = """return [...document.querySelectorAll('.table td')].map(cell => {
        const range = document.createRange();
        range.selectNodeContents(cell.querySelector("code") ?? cell);
        return range.getClientRects().length;
    })"""
    assert page.js(boxes) == [1, 1, 1, 1, 1]


def test_a_reload_keeps_everything(page):
    page.click("#open-settings")
    page.find("[name=system]").send_keys("Be brief.")
    page.find("[name=seed]").send_keys("7")
    page.find("[name=stop]").send_keys("END")
    page.click("#settings .close")
    answer = page.ask(QUESTION)
    page.click(".user [title='Edit']")
    page.find(".editor textarea").send_keys(" Please", Keys.ENTER)
    page.wait(lambda: page.text(".user .branches") == "2/2")
    page.wait(page.is_idle)
    page.click(".user [title='Previous version']")
    page.question.send_keys("a draft")
    # Drafts are written soon after the last key.
    time.sleep(0.6)
    page.reload()
    page.wait(lambda: page.count(".assistant .unrendered") == 0)
    assert page.text(".user .body") == QUESTION and page.text(".user .branches") == "1/2"
    assert page.text(".assistant .body") == answer
    assert page.question.get_property("value") == "a draft"
    page.click("#open-settings")
    kept = [page.find(f"[name={name}]").get_property("value") for name in ["system", "seed", "stop"]]
    assert kept == ["Be brief.", "7", "END"]
    page.click("#settings .close")
    # A draft belongs to its conversation.
    page.click("#new-chat")
    page.wait(lambda: page.question.get_property("value") == "")


def test_stop_continue_again_and_reload_in_the_middle(page):
    page.script_model()
    page.begin("Tell me about everything")
    assert page.count(".writing") == 1
    page.question.send_keys(Keys.ESCAPE)
    page.wait(page.is_idle)
    assert "Stopped" in page.text(".assistant .remark")
    id = "return document.querySelector('.assistant').dataset.id"
    stopped, text = page.js(id), page.last()
    page.click(".go-on")
    page.wait(lambda: page.last().startswith(text) and len(page.last()) > len(text) + 20)
    page.click("#stop")
    page.wait(page.is_idle)
    continued = page.js("return requests.at(-1)")
    assert page.js(id) == stopped and continued["continue_final_message"] is True
    assert continued["messages"][-1] == {"role": "assistant", "content": text.strip()}
    page.click("[title='Regenerate']")
    page.wait(lambda: page.js(id) != stopped and len(page.last()) > 200)
    # Long enough for what has come to be kept.
    time.sleep(1.2)
    page.reload()
    page.wait(lambda: page.text(".assistant .branches") == "2/2")
    assert "Interrupted" in page.text(".assistant .remark") and page.count(".go-on") == 1
    assert len(page.last()) > 200
    page.click(".assistant [title='Previous version']")
    page.wait(lambda: page.last().startswith(text))


def test_answers_are_rendered_as_they_come(page):
    text = (RICH + "\n\n") * 4
    pieces = [text[i:i + 8] for i in range(0, len(text), 8)]
    page.script_model([{"choices": [{"delta": {"content": piece}}]} for piece in pieces], every=6)
    page.question.send_keys("Go on", Keys.ENTER)
    # Coloured code and formulas are there before the answer is.
    page.wait(lambda: page.count(".writing .code .k") and page.count(".writing math"))
    streamed = page.wait(lambda: page.count("math") == 12 and page.js(
        "return document.querySelector('.writing .body')?.innerText"))
    page.wait(page.is_idle)
    page.wait(lambda: page.count(".tail") == 0)
    assert page.count(".assistant .table") == 4 and page.js("return window.injected") is None
    assert page.last().startswith(streamed.rsplit("Some", 1)[0])
    renders = page.js("return renders")
    gaps = sorted(b[0] - a[0] for a, b in zip(renders, renders[1:]))
    # At most ten a second but for the last, which is of the whole; each of little more than a block.
    assert gaps[1] > 90 and sum(n for _, n in renders[:-1]) < 8 * len(text)


def test_thoughts_are_folded_and_can_be_switched_off(page):
    page.js("""
        const real = Response.prototype.json;
        Response.prototype.json = async function () {
            const value = await real.call(this);
            if (value.model?.context) value.model.thinks = true;
            return value;
        };""")
    page.wait(lambda: page.find("#think").is_displayed())
    deltas = [{"reasoning_content": "First I **think**."}, {"content": "Then I speak."}]
    progress = {"choices": [], "prompt_progress": {"processed": 512, "total": 1024, "cache": 0}}
    page.script_model([progress] + [{"choices": [{"delta": delta}]} for delta in deltas], every=300)
    page.question.send_keys("Why?", Keys.ENTER)
    page.wait(lambda: "512 of 1,024 tokens" in page.text("#progress-text"))
    page.wait(lambda: page.text(".thought summary") == "Thinking…")
    page.wait(page.is_idle)
    assert page.text(".thought summary") == "Thought" and "think" not in page.text(".assistant")
    page.click(".thought summary")
    page.wait(lambda: page.text(".thought strong") == "think")
    assert page.last() == "Then I speak."
    page.click("#think")
    page.question.send_keys("And?", Keys.ENTER)
    page.wait(lambda: page.js("return requests.length") == 2)
    first, second = page.js("return requests")
    assert "reasoning_effort" not in first and second["reasoning_effort"] == "none"
    # Thoughts are not sent back.
    assert [message["content"] for message in second["messages"]] == ["Why?", "Then I speak.", "And?"]
    page.wait(page.is_idle)


def test_a_busy_server_is_tried_again(page):
    page.js("""
        const real = fetch;
        window.tries = 0;
        window.fetch = (url, options) => {
            if (!String(url).includes("chat/completions") || tries++) return real(url, options);
            const error = { error: { message: "the queue is full" } };
            return Promise.resolve(new Response(JSON.stringify(error), { status: 429, headers: { "retry-after": "1" } }));
        };""")
    n = page.count(".assistant")
    page.question.send_keys(QUESTION, Keys.ENTER)
    page.wait(lambda: "Trying again in 1 s" in page.text("#progress-text"))
    page.wait(lambda: page.count(".assistant") > n and "Appends an element" in page.last())
    assert page.js("return tries") == 2


def test_another_conversation_while_an_answer_is_made(page):
    page.script_model()
    page.begin("Tell me about everything")
    page.click("#new-chat")
    page.wait(lambda: page.count(".empty") == 1 and page.find("#send").is_displayed())
    page.begin("And about something else")
    assert page.js("return requests.at(-1).messages.length") == 1
    page.click("#stop")
    page.wait(page.is_idle)
    page.click("#chats li:last-child a")
    page.wait(lambda: page.text(".user .body") == "Tell me about everything")
    # It went on meanwhile.
    assert page.find("#stop").is_displayed()
    n = len(page.last())
    page.wait(lambda: len(page.last()) > n + 20)
    page.click("#stop")
    page.wait(page.is_idle)
    assert page.count("#messages > li") == 2


def test_export_delete_undo_import(page):
    page.put(conversation("first", "One?", "Uno.", title="First"),
             conversation("second", "Two?", "Dos.", title="Second", age=90_000_000))
    page.click("#export-all")
    file = page.wait(lambda: next(page.folder.glob("2 conversations.json"), None))
    value = page.wait(lambda: json.loads(file.read_text() or "null"))
    assert [chat["title"] for chat in value["conversations"]] == ["First", "Second"]

    def delete(id):
        page.click(f"[data-chat={id}] > button")
        page.click("[role=menuitem]:last-child")
        page.wait(lambda: page.count(f"[data-chat={id}]") == 0)

    delete("first")
    assert page.count(".empty") == 1
    page.click(".notice .link")
    page.wait(lambda: page.count("[data-chat=first]") == 1)
    delete("first")
    delete("second")
    page.find("#import-input").send_keys(str(file))
    page.wait(lambda: page.count("[data-chat]") == 2)
    page.click("[data-chat=second] a")
    page.wait(lambda: page.text(".assistant .body") == "Dos.")
    # A second time nothing changes; what is no export is refused with a reason.
    page.find("#import-input").send_keys(str(file))
    page.wait(lambda: "was here already" in page.text("#notices"))
    # A chat of another name whose messages have the ids of these leaves them as they are.
    copy = page.folder / "copy.json"
    value["conversations"] = [{**value["conversations"][0], "id": "copy", "title": "Copy"}]
    copy.write_text(json.dumps(value))
    page.find("#import-input").send_keys(str(copy))
    page.wait(lambda: page.count("[data-chat]") == 3)
    for id in ["copy", "first"]:
        page.click(f"[data-chat={id}] a")
        page.wait(lambda: page.text(".open a").lower() == id and page.text(".assistant .body") == "Uno.")
    wrong = page.folder / "wrong.json"
    wrong.write_text('{"format": "moeflux-conversations", "version": 1, "conversations": [{}]}')
    page.find("#import-input").send_keys(str(wrong))
    page.wait(lambda: "conversation 1 lacks" in page.text("#notices"))
    assert page.count("[data-chat]") == 3


def test_a_conversation_as_markdown(page):
    chat = conversation("first", "One?", "Uno `x`.", "Two?", "Dos.", title="First: of two")
    chat["messages"][0]["files"] = [{"name": "notes.txt", "text": "a ``` b"}]
    chat["messages"][1] |= {"thought": "I think\n\nabout it", "model": "some-model"}
    other = {**chat["messages"][3], "id": "other", "content": "Another version."}
    chat["messages"].append(other)
    page.put(chat)
    page.click("[data-chat=first] > button")
    entry = page.all("[role=menuitem]")[1]
    assert entry.text == "Export as Markdown"
    entry.click()
    file = page.wait(lambda: next(page.folder.glob("First of two*.md"), None))
    text = page.wait(lambda: file.read_text())
    assert text == """# First: of two

## User

File: notes.txt
````
a ``` b
````

One?

## Assistant (some-model)

> I think
>
> about it

Uno `x`.

## User

Two?

## Assistant

Dos.
"""


def test_its_words_are_those_of_other_programs(page):
    page.click("#open-settings")
    labels = page.js("return [...document.querySelectorAll('#settings label > span')].map(one => one.innerText)")
    for word in ["System prompt", "Temperature", "Top K", "Top P", "Min P", "Repeat penalty", "Presence penalty",
                 "Frequency penalty", "Max tokens", "Seed", "Stop sequences, one per line", "API key", "Theme"]:
        assert word in labels, (word, labels)
    page.click("#settings .close")
    # All that can be used has a name.
    nameless = page.js("""return [...document.querySelectorAll('button, input, select, textarea')].filter(one =>
        !one.innerText && !one.getAttribute('aria-label') && !one.labels?.length && one.type !== 'file')
        .map(one => one.outerHTML)""")
    assert nameless == []


def test_search_rename_and_keys(page):
    page.put(conversation("first", "One?", "A needle in a haystack.", title="First"),
             conversation("second", "Two?", "Nothing.", title="Second"))
    page.question.send_keys(Keys.CONTROL, "k")
    field = page.browser.switch_to.active_element
    field.send_keys("NEEDLE")
    page.wait(lambda: page.text(".result mark") == "needle")
    assert page.count(".result") == 1
    field.send_keys(Keys.ESCAPE)
    page.wait(lambda: page.count("[data-chat]") == 2)
    page.click("[data-chat=second] > button")
    page.browser.switch_to.active_element.send_keys(Keys.ENTER)
    page.browser.switch_to.active_element.send_keys(Keys.CONTROL, "a")
    page.browser.switch_to.active_element.send_keys("Renamed", Keys.ENTER)
    page.wait(lambda: page.text("[data-chat=second] a") == "Renamed")
    page.question.send_keys("one", Keys.SHIFT, Keys.ENTER, Keys.NULL, "two")
    assert page.question.get_property("value") == "one\ntwo"
    page.question.clear()
    page.question.send_keys(Keys.ARROW_UP)
    assert page.find(".editor textarea").get_property("value") == "One?"
    page.browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert page.count(".editor") == 0
    page.question.send_keys(Keys.CONTROL, "/")
    page.wait(lambda: "Search chats" in page.text("#keys"))
    page.browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.question.send_keys(Keys.CONTROL, Keys.SHIFT, "o")
    page.wait(lambda: page.count(".empty") == 1)


def test_two_tabs_keep_each_others_data(page, server):
    page.put(conversation("first", "One?", "Uno.", title="First"))
    tab = page.browser.current_window_handle
    page.browser.switch_to.new_window("tab")
    page.open(server.url + "/#first")
    page.wait(lambda: page.count(".assistant") == 1)
    assert page.ask("What is 23 + 45?")
    other = page.browser.current_window_handle
    page.browser.switch_to.window(tab)
    page.wait(lambda: page.count(".assistant") == 2)
    # A title of one tab and an answer of the other.
    page.click("[data-chat=first] > button")
    page.click("[role=menuitem]")
    page.js("""const field = document.querySelector('#chats form input'); field.value = 'Renamed';
        field.form.requestSubmit()""")
    page.browser.switch_to.window(other)
    page.wait(lambda: page.text("[data-chat=first] a") == "Renamed")
    assert page.ask(QUESTION)
    page.reload()
    assert page.count(".assistant") == 3 and page.text("[data-chat=first] a") == "Renamed"


def test_the_demo_offers_questions_in_place_of_guesses(page):
    page.wait(lambda: page.count(".empty .questions button") == 3)
    assert "demo of 21 M parameters" in page.text(".empty")
    page.ask("hi")
    assert "I could only guess" in page.text(".assistant .remark")
    assert page.find(".assistant .body").get_attribute("hidden") is not None
    page.click(".assistant .questions button")
    page.wait(lambda: "Appends an element" in page.last())
    page.reload()
    page.wait(lambda: page.count(".assistant") == 2)
    assert "I could only guess" in page.text(".assistant .remark")


def test_files_go_with_a_question(page):
    file = page.folder / "notes.txt"
    file.write_text("text of the file ``` with a fence")
    picture = page.folder / "picture.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00")
    large = page.folder / "large.txt"
    large.write_text("x" * 600_000)
    for path, problem in [(picture, "sees no pictures"), (large, "at most")]:
        page.find("#file-input").send_keys(str(path))
        page.wait(lambda: problem in page.text("#notices"))
    page.find("#file-input").send_keys(str(file))
    page.wait(lambda: page.text("#files .chip span") == "notes.txt")
    page.ask("What is in it?")
    assert page.text(".user .chip span") == "notes.txt" and page.count("#files .chip") == 0
    sent = page.js("""return import(new URL("page/tree.js", document.baseURI)).then(tree =>
        tree.textForModel({ content: "Why?", files: [{ name: "a.txt", text: "x ``` y" }] }))""")
    assert sent == "File: a.txt\n````\nx ``` y\n````\n\nWhy?"


def test_errors_say_what_to_do(page):
    page.js("document.getElementById('question').value = 'long '.repeat(30000)")
    page.question.send_keys(" ", Keys.ENTER)
    page.wait(lambda: page.count(".error"))
    assert "longer than what the model can hold" in page.text(".error strong")
    assert page.text(".error button") == "Try again"
    page.shot("error")
    page.errors()  # Chromium counts the refusal as an error of the page's.
    # A question that was refused is no part of what the model reads.
    assert "Appends an element" in page.ask(QUESTION)


def test_a_key_and_copying_on_plain_http(browser):
    key = "a-key-for-tests"
    server = Server("--model-name", "moeflux-demo", env={"MOEFLUX_API_KEY": key})
    try:
        browser.open(server.url.replace("127.0.0.1", "llm.test") + "/")
        assert not browser.js("return isSecureContext")
        browser.wait(lambda: "API key" in browser.text("#connection"))
        browser.question.send_keys(QUESTION, Keys.ENTER)
        browser.wait(lambda: browser.count(".error"))
        browser.shot("key-needed")
        browser.click(".error button")
        browser.find("[name=key]").send_keys(key, Keys.ENTER)
        browser.wait(lambda: "Appends an element" in browser.text(".assistant .body"))
        browser.wait(browser.is_idle)
        browser.reload()
        browser.wait(lambda: browser.count(".assistant .unrendered") == 0)
        browser.browser.execute_script("""window.copied = null;
            document.addEventListener("copy", () => { window.copied = getSelection().toString(); });""")
        browser.find(".assistant .copy").click()
        browser.wait(lambda: browser.count(".copy[title=Copied]") == 1)
        browser.question.send_keys(Keys.CONTROL, "v")
        assert "Appends an element" in browser.question.get_property("value")
    finally:
        browser.errors()
        server.kill()


def test_behind_a_proxy_with_tls_and_a_path(browser, server):
    with TlsProxy(server.url, "/llm") as proxy:
        browser.open(f"{proxy.url}/llm/")
        assert browser.js("return isSecureContext")
        assert "Appends an element" in browser.ask(QUESTION)
        browser.reload()
        assert browser.text(".user .body") == QUESTION
        assert not browser.errors()


def test_long_conversations_stay_quick(page):
    texts = [f"Question {i}?" if i % 2 == 0 else f"Answer **{i}** with `code`.\n\n- a\n- b" for i in range(300)]
    page.put(conversation("long", *texts))
    page.wait(lambda: page.count("#messages > li") == 300)
    assert page.count(".assistant .unrendered, .assistant .body:empty") > 100
    took = page.js("""const start = performance.now();
        document.getElementById("messages").scrollTop = 0;
        document.body.getBoundingClientRect();
        return performance.now() - start;""")
    assert took < 1000
    page.wait(lambda: page.js("return document.querySelector('.assistant strong')?.innerText") == "1")


def test_a_browser_that_keeps_nothing(page):
    """What cannot be stored is said, and the page goes on."""
    page.browser.execute_cdp_cmd("Page.enable", {})
    added = page.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {
        "source": "IDBFactory.prototype.open = () => { throw new DOMException('denied', 'SecurityError'); };"
                  "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); };"})
    try:
        page.reload()
        page.wait(lambda: "keeps no conversations" in page.text("#notices"))
        assert "Appends an element" in page.ask(QUESTION)
        assert page.count("[data-chat]") == 1
        page.click("#new-chat")
        page.wait(lambda: page.count(".empty") == 1)
        page.click("[data-chat] a")
        page.wait(lambda: page.text(".user .body") == QUESTION)
    finally:
        page.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
