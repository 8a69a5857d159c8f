"""The page in headless Chromium. Screenshots go to MOEFLUX_SCREENSHOTS, if that is set."""

import os
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with chromedriver")


@pytest.fixture(params=["desktop", "phone"])
def size(request):
    return request.param


@pytest.fixture(params=["light", "dark"])
def scheme(request):
    return request.param


@pytest.fixture
def page(server, size, scheme):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                 "--disable-dev-shm-usage"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        width, height = SIZES[size]
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": scheme}]})
        browser.get(server.url + "/")
        yield browser
        wrong = [it for it in browser.get_log("browser") if it["level"] == "SEVERE"]
        assert not wrong, wrong
    finally:
        browser.quit()


def wait(page, condition, seconds=60):
    return WebDriverWait(page, seconds, poll_frequency=0.05).until(condition)


def find(page, selector):
    return page.find_element(By.CSS_SELECTOR, selector)


def ask(page, text):
    n = len(page.find_elements(By.CSS_SELECTOR, ".assistant .foot"))
    find(page, "#question").send_keys(text, Keys.ENTER)
    wait(page, lambda it: len(it.find_elements(By.CSS_SELECTOR, ".assistant .foot")) > n)
    return page.find_elements(By.CSS_SELECTOR, ".assistant .body")[-1].text


def begin(page, text):
    """Asks, and waits for an answer to be on its way; some are there before one looks."""
    feet = lambda it: len(it.find_elements(By.CSS_SELECTOR, ".assistant .foot"))
    for _ in range(20):
        n = feet(page)
        find(page, "#question").send_keys(text, Keys.ENTER)
        wait(page, lambda it: find(it, "#stop").is_displayed() or feet(it) > n)
        if find(page, "#stop").is_displayed():
            return


def shot(page, name):
    folder = os.environ.get("MOEFLUX_SCREENSHOTS")
    if folder:
        page.save_screenshot(os.path.join(folder, name + ".png"))


def test_a_conversation(page, size, scheme):
    wait(page, lambda it: find(it, "#model-name").text == "moeflux-demo")
    shot(page, f"empty-{size}-{scheme}")
    assert "Appends an element" in ask(page, "What does `Vec::push` do?")
    assert ask(page, "What is 23 + 45?")
    assert "tok/s" in find(page, ".assistant .foot").text
    # Nothing is wider than the window.
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    # The charts have seen it.
    curve = "return document.querySelector('#rate-chart .curve').getAttribute('d') || ''"
    wait(page, lambda it: it.execute_script(curve).startswith("M"))
    shot(page, f"talk-{size}-{scheme}")
    if size == "phone":
        find(page, "#toggle-facts").click()
        assert not find(page, "#talk").is_displayed()
    assert "MiB" in find(page, "#memory").text and "32" in find(page, "#model").text
    shot(page, f"facts-{size}-{scheme}")


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light")])
def test_markdown_is_drawn_and_markup_is_text(page):
    text = ("# Title\n\nSome *soft* and **strong** `code <b>`.\n\n- one\n- two\n  1. deep\n\n"
            "```rust\nlet x = 1 < 2;\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> said\n\n"
            "<img src=x onerror=alert(1)> [a](javascript:alert(1)) [b](https://example.com/x)\n\n***")
    page.execute_script("""
        const { body } = addTurn("assistant");
        renderMarkdown(body, arguments[0]);
    """, text)
    body = find(page, ".assistant .body")
    html = body.get_attribute("innerHTML")
    assert "<h3>Title</h3>" in html and "<em>soft</em>" in html and "<strong>strong</strong>" in html
    assert "<code>code &lt;b&gt;</code>" in html
    assert "<li>two<ol><li>deep</li></ol></li>" in html
    assert '<pre><code data-language="rust">let x = 1 &lt; 2;</code></pre>' in html
    assert "<td>2</td>" in html and "<blockquote><p>said</p></blockquote>" in html
    assert not body.find_elements(By.CSS_SELECTOR, "img, script")
    links = body.find_elements(By.CSS_SELECTOR, "a")
    assert [it.get_attribute("href") for it in links] == ["https://example.com/x"]
    shot(page, "markdown")
    # Pieces of it, as they stream in, break nothing.
    for end in range(len(text)):
        page.execute_script("renderMarkdown(document.querySelector('.assistant .body'), arguments[0])",
                            text[:end])


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "dark")])
def test_keys_and_errors(page):
    question = find(page, "#question")
    assert page.switch_to.active_element == question
    question.send_keys("one", Keys.SHIFT, Keys.ENTER, Keys.NULL, "two")
    assert question.get_property("value") == "one\ntwo"
    question.clear()
    find(page, "#settings summary").click()
    find(page, "#temperature").send_keys("1.9")
    find(page, "#max-tokens").send_keys("2000")
    find(page, "#system").send_keys("You write without an end.")
    begin(page, "Tell me about everything")
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait(page, lambda it: find(it, "#send").is_displayed())
    # A prompt that does not fit is told, and can be tried again.
    page.execute_script("document.getElementById('question').value = 'long '.repeat(30000)")
    question.send_keys(Keys.ENTER)
    wait(page, lambda it: it.find_elements(By.CSS_SELECTOR, ".error"))
    assert "maximum context length is 4096 tokens" in find(page, ".error").text
    retry = page.find_elements(By.CSS_SELECTOR, ".assistant .foot button")[-1]
    seen = "return arguments[0].getBoundingClientRect().bottom <= " \
        "document.getElementById('messages').getBoundingClientRect().bottom + 1"
    assert retry.text == "Try again" and page.execute_script(seen, retry)
    shot(page, "error")
    page.get_log("browser")  # Chromium counts the refusal as an error of the page's.
    find(page, "#new-chat").click()
    assert find(page, ".empty").is_displayed()


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light")])
def test_what_was_left_is_no_part_of_the_next_conversation(page):
    roles = "return messages.map(it => it.role).join()"
    question = find(page, "#question")
    find(page, "#settings summary").click()
    find(page, "#temperature").send_keys("1.9")
    begin(page, "Tell me about everything")
    find(page, "#new-chat").click()
    wait(page, lambda it: find(it, "#send").is_displayed())
    assert page.execute_script(roles) == "" and find(page, ".empty").is_displayed()
    assert ask(page, "What is 23 + 45?")
    assert page.execute_script(roles) == "user,assistant"
    # Nor is a question that was refused.
    page.execute_script("document.getElementById('question').value = 'long '.repeat(30000)")
    question.send_keys(Keys.ENTER)
    wait(page, lambda it: it.find_elements(By.CSS_SELECTOR, ".error"))
    page.get_log("browser")  # Chromium counts the refusal as an error of the page's.
    assert ask(page, "What is 23 + 45?")
    assert page.execute_script(roles) == "user,assistant,user,assistant"
