"""The page with servers of one model and of several, in headless Chromium."""

import os
import subprocess
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from conftest import Server
from page_driver import CHROMIUM, DRIVER

QUESTION = "What does `Vec::push` do?"

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with chromedriver")


# Two models, of which the second is not in memory; the page reads this in place of the server's list.
SEVERAL = """
    window.isLoaded = false;
    const real = Response.prototype.json;
    Response.prototype.json = async function () {
        const value = await real.call(this);
        if (value.object !== "list") return value;
        const [card] = value.data;
        card.status = { value: "loaded" };
        const status = { value: isLoaded ? "loaded" : "unloaded" };
        value.data.push({ id: "other", object: "model", context_length: 8192, status,
            capabilities: { thinking: { supported: true }, function_calling: true } });
        value.models.push({ name: "other", capabilities: ["completion", "tools", "thinking", "insert"] });
        return value;
    };"""


def test_a_choice_of_models(page):
    choice = "#model-choice"
    page.wait(lambda: page.text("#abilities"))
    # With one model there is nothing to choose.
    assert not page.find(choice).is_displayed() and page.find("#model-name").is_displayed()
    assert page.text("#abilities") == "4,096 tokens of context · tools"
    added = page.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SEVERAL})
    try:
        page.reload()
        page.wait(lambda: page.find(choice).is_displayed())
        assert not page.find("#model-name").is_displayed()
        assert page.find(choice).accessible_name == "Model" and page.find(choice).aria_role == "combobox"
        assert page.js("return [...arguments[0].options].map(one => one.text)", page.find(choice)) == [
            "moeflux-demo", "other (loads on first use)"]
        assert page.find(choice).get_property("value") == "moeflux-demo"
        page.find(choice).send_keys("o")
        page.wait(lambda: page.text("#abilities") == "8,192 tokens of context · thinking · tools · infill")
        assert page.find("#think").is_displayed() and "Ask other" in page.text(".empty")
        # What the demo says of itself does not hold for the other.
        assert page.count(".questions") == 0
        page.click("#toggle-facts")
        assert page.text("#model").split("\n")[1] == "moeflux-demo"
        page.shot("models")
        page.click("#close-facts")
        # It is remembered, and asked.
        page.reload()
        page.wait(lambda: page.find(choice).get_property("value") == "other")
        page.script_model([{"choices": [{"delta": {"content": "Yes."}}]}], every=400)
        page.question.send_keys("Are you there?", Keys.ENTER)
        page.wait(lambda: page.text("#progress-text") == "Loading other")
        page.wait(page.is_idle)
        assert page.js("return requests[0].model") == "other"
        # The list is read again after an answer.
        page.js("isLoaded = true")
        page.click("[title='Regenerate']")
        page.wait(lambda: page.js("return [...arguments[0].options].map(one => one.text)", page.find(choice))[1] == "other")
        page.resize("phone", "light")
        assert page.is_narrow()
        page.shot("models-phone")
    finally:
        page.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    # A model that is listed no more is not asked.
    page.reload()
    page.wait(lambda: page.text("#model-name") == "moeflux-demo" and page.find("#model-name").is_displayed())
    page.question.send_keys(QUESTION, Keys.ENTER)
    page.wait(lambda: "Appends an element" in page.last())


def test_the_models_of_a_server_are_chosen_and_loaded(page, tmp_path):
    synthetic = tmp_path / "synthetic"
    subprocess.run([os.environ["MOEFLUX_BIN"], "synth", "--shape", "tiny", "--out", synthetic], check=True,
                   capture_output=True)
    demo = Path(__file__).parents[3] / "moeflux-cli/demo"
    several = Server("-m", str(demo), "-m", str(synthetic), "--max-loaded", "1", "--ctx", "256")

    def choices():
        return page.js("return [...document.querySelectorAll('#model-choice option')].map(one => one.text)")

    before = page.browser.current_url
    try:
        page.browser.get(several.url + "/")
        page.ready()
        page.wait(lambda: choices() == ["demo", "synthetic (loads on first use)"])
        page.find("#model-choice").send_keys("s")
        page.question.send_keys("Hello", Keys.ENTER)
        page.wait(lambda: choices() == ["demo (loads on first use)", "synthetic"])
        page.wait(page.is_idle)
        assert page.last()
        page.wait(lambda: page.text("#abilities").startswith("256 tokens of context"))
    finally:
        page.browser.get(before)
        page.ready()
        assert several.stop() == 0
