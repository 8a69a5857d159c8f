"""A browser with the page in it."""

import os
import shutil

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


class Page:
    """A browser with the page."""

    def __init__(self, folder, *flags):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                     "--disable-dev-shm-usage", "--window-size=1280,800", "--host-resolver-rules=MAP llm.test 127.0.0.1",
                     "--ignore-certificate-errors", *flags]:
            options.add_argument(flag)
        options.add_experimental_option("prefs", {"download.default_directory": str(folder)})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self.folder = folder
        self.resize("desktop", "light")

    def resize(self, size, scheme):
        width, height = SIZES[size]
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"})
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def open(self, url):
        # The page before may have asked a server that is gone: its errors are not this page's.
        self.browser.get("about:blank")
        self.errors()
        self.browser.get(url)
        self.ready()

    def reload(self):
        self.browser.refresh()
        self.ready()

    def ready(self):
        self.wait(lambda: self.js("return document.body?.dataset.ready") == "true")

    def js(self, script, *args):
        return self.browser.execute_script(script, *args)

    def wait(self, condition, seconds=30):
        return WebDriverWait(self.browser, seconds, poll_frequency=0.03).until(lambda _: condition())

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def count(self, selector):
        return self.js("return document.querySelectorAll(arguments[0]).length", selector)

    def text(self, selector):
        # What has not been drawn yet has no `innerText`.
        return self.js("""const element = document.querySelector(arguments[0]);
            return element?.innerText || element?.textContent || "";""", selector)

    def click(self, selector):
        # What only appears under a pointer is clicked, too.
        self.js("document.querySelector(arguments[0]).click()", selector)

    @property
    def question(self):
        return self.find("#question")

    def is_idle(self):
        return not self.find("#stop").is_displayed() and self.count("#messages .writing") == 0

    def ask(self, text):
        """Asks, waits for the whole answer and returns it."""
        n = self.count(".assistant")
        self.question.send_keys(text, Keys.ENTER)
        self.wait(lambda: self.count(".assistant") > n)
        self.wait(self.is_idle)
        self.wait(lambda: self.count(".assistant .unrendered") == 0)
        return self.last()

    def script_model(self, events=None, every=20):
        """Answers from now on come of a script: these events, or words without an end."""
        self.js("""
            const [events, every] = arguments;
            const real = fetch;
            window.requests = [];
            window.renders = [];
            window.fetch = (url, options) => {
                if (String(url).endsWith("page/render")) renders.push([performance.now(), options.body.length]);
                if (!String(url).includes("chat/completions")) return real(url, options);
                requests.push(JSON.parse(options.body));
                let n = 0;
                let timer = null;
                const word = () => ({ choices: [{ delta: { content: `word${n} ` } }] });
                const body = new ReadableStream({
                    start(controller) {
                        options.signal.addEventListener("abort", () => {
                            clearInterval(timer);
                            controller.error(new DOMException("stopped", "AbortError"));
                        });
                        timer = setInterval(() => {
                            n += 1;
                            const isEnd = events && n > events.length;
                            const data = isEnd ? "[DONE]" : JSON.stringify(events ? events[n - 1] : word());
                            controller.enqueue(new TextEncoder().encode(`data: ${data}\\n\\n`));
                            if (!isEnd) return;
                            clearInterval(timer);
                            controller.close();
                        }, every);
                    },
                });
                return Promise.resolve(new Response(body));
            };""", events, every)

    def begin(self, text):
        """Asks, and waits for the beginning of an answer."""
        n = self.count(".assistant")
        self.question.send_keys(text, Keys.ENTER)
        self.wait(lambda: self.count(".assistant") > n)
        self.wait(lambda: "word9" in self.last())

    def last(self):
        return self.js("""const body = [...document.querySelectorAll(".assistant .body")].at(-1);
            return body?.innerText || body?.textContent || "";""")

    def put(self, *chats):
        """Stores conversations as the page does, and loads the page again."""
        script = """
            const [chats, done] = arguments;
            const request = indexedDB.open("moeflux", 1);
            request.onsuccess = () => {
                const database = request.result;
                const transaction = database.transaction(["chats", "messages"], "readwrite");
                for (const { messages, ...chat } of chats) {
                    transaction.objectStore("chats").put(chat);
                    for (const message of messages) transaction.objectStore("messages").put(message);
                }
                transaction.oncomplete = () => { database.close(); done(null); };
                transaction.onerror = () => done(String(transaction.error));
            };"""
        assert self.browser.execute_async_script(script, list(chats)) is None
        self.js("location.hash = arguments[0]", chats[0]["id"])
        self.reload()

    def shot(self, name):
        folder = os.environ.get("MOEFLUX_SCREENSHOTS")
        if folder:
            self.browser.save_screenshot(os.path.join(folder, name + ".png"))

    def is_narrow(self):
        """Nothing is wider than the window."""
        return self.js("return document.documentElement.scrollWidth <= innerWidth && "
                       "document.getElementById('messages').scrollWidth <= "
                       "document.getElementById('messages').clientWidth")

    def clear(self):
        """Forgets everything that the page has kept at this origin."""
        self.browser.execute_async_script("""
            const done = arguments[0];
            localStorage.clear();
            sessionStorage.clear();
            const request = indexedDB.open("moeflux", 1);
            request.onsuccess = () => {
                const stores = [...request.result.objectStoreNames];
                if (!stores.length) { request.result.close(); done(); return; }
                const transaction = request.result.transaction(stores, "readwrite");
                for (const store of stores) transaction.objectStore(store).clear();
                transaction.oncomplete = () => { request.result.close(); done(); };
            };""")

    def errors(self):
        return [line for line in self.browser.get_log("browser") if line["level"] == "SEVERE"]
