#!/usr/bin/env python3
"""Renders chat templates with transformers' own Jinja environment, for the tests of ours. Run in environment A of make_golden.py:

    A/bin/python tools/golden/make_templates.py --demo CHECKPOINT_OF_THE_DEMO_MODEL

Sources are the *.jinja files in templates/ beside this script (our own text, in the manner of common model families) and the
demo model's own template. Every case becomes one JSON file: template, bos_token, eos_token (null: not defined), messages,
tools, add_generation_prompt, extra (further variables) and either `rendered` or `error` (the message given to raise_exception).
"""
import argparse
import json
from pathlib import Path

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE.parent.parent / "crates" / "moeflux-text" / "tests" / "golden" / "templates"

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Today's weather in a city, e.g. \"Zürich\" <now>", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}, "days": {"type": "integer", "minimum": 1},
                                     "unit": {"type": "string", "enum": ["°C", "°F"]}}, "required": ["city"]}}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "Time & date", "parameters": {"type": "object", "properties": {}}}}


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def says(text, **more):
    return {"role": "assistant", "content": text, **more}


def tool(text):
    return {"role": "tool", "content": text}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


ASK = [user("What does Vec::push do?")]
SYSTEM = [system("You are terse.\nAlways."), user("  Two spaces before, one after. ")]
UNICODE = [system("Réponds en français 🙂."), user("naïve café — 你好，世界\u200b e\u0301 \"quotes\" <b>&amp;</b> \\n"), says("Ça va\t!\n\nBien."), user("नमस्ते")]
TURNS = [user("2+2?"), says("<think>\nadd them\n</think>\n\n4"), user("and 3+3?"), says("6", reasoning_content="same again"), user("thanks")]
PREFILL = [user("2+2?"), says("<think>\nadd them\n</think>\n\n4")]
ARGS = {"city": "Zürich", "days": 3, "unit": "°C", "exact": True, "where": {"lat": 47.37, "tags": ["a", None]}}
ONE_CALL = [system("Use tools."), user("Weather in Zürich?"), says("", tool_calls=[call("get_weather", ARGS, id="c1")]), tool("{\"t\": 21.5, \"sky\": \"☀\"}"),
            says("21.5 °C and sunny."), user("And the time?")]
TWO_CALLS = [user("Weather and time?"), says("Let me look.", tool_calls=[call("get_weather", {"city": "Oslo"}), call("clock", {})]), tool("rain"), tool("12:30"), says("Rain, 12:30.")]
TEXT_CALLS = [user("Weather and time?"), says(None, tool_calls=[call("get_weather", "{\"city\": \"Oslo\"}"), call("clock", "{}")]), tool("rain"), tool("12:30")]
PARTS = [user([{"type": "text", "text": "What is "}, {"type": "image"}, {"type": "text", "text": "this?"}])]
THINK_OFF, THINK_ON = {"enable_thinking": False}, {"enable_thinking": True}
TOOLS = [WEATHER, CLOCK]


def case(messages, prompt=True, tools=None, **extra):
    return dict(messages=messages, tools=tools, add_generation_prompt=prompt, extra=extra)


COMMON = {"ask": case(ASK), "system": case(SYSTEM), "unicode": case(UNICODE, prompt=False)}
CHATML = dict(COMMON, **{"turns": case(TURNS), "no-thinking": case(TURNS, **THINK_OFF), "prefill": case(PREFILL, prompt=False),
                         "one-call": case(ONE_CALL, tools=TOOLS), "two-calls": case(TWO_CALLS, prompt=False, tools=TOOLS)})
CASES = {
    "chatml-think": (None, "<|im_end|>", CHATML),
    "chatml-parts": (None, "<|im_end|>", {**CHATML, "thinking": case(ASK, **THINK_ON), "parts": case(PARTS, add_image_numbers=True),
                                           "error-role": case(ASK + [{"role": "robot", "content": "beep"}]), "error-no-user": case([system("Hm.")]),
                                           "error-late-system": case(ASK + [system("late")]), "error-empty": case([]), "error-content": case([user(5)])}),
    "fullwidth-tags": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", {**COMMON, "turns": case(TURNS[:3]), "text-calls": case(TEXT_CALLS),
                                                                            "after-calls": case(TEXT_CALLS + [says("Rain, 12:30."), user("Thanks")])}),
    "gmask": (None, "<|endoftext|>", {**COMMON, "turns": case(TURNS), "no-thinking": case(TURNS, **THINK_OFF), "prefill": case(PREFILL, prompt=False),
                                       "one-call": case(ONE_CALL, tools=TOOLS), "two-calls": case(TWO_CALLS, tools=TOOLS), "parts": case(PARTS)}),
    "header-ids": ("<|begin_of_text|>", "<|eot_id|>", {**COMMON, "turns": case(TURNS, date_string="21 Nov 2026"), "one-call": case(ONE_CALL, tools=[WEATHER]),
                                                       "tools-in-system": case(ONE_CALL, tools=TOOLS, tools_in_user_message=False),
                                                       "error-two-calls": case(TWO_CALLS, tools=TOOLS), "error-no-user": case([system("Hm.")], tools=TOOLS)}),
    "language-tour": ("<s>", "</s>", {"all": case(UNICODE, name="Ferris"), "break": case([user("go"), says(None), user("now stop"), user("never")]), "empty-content": case([system("x"), user("")], prompt=False)}),
    "demo": (None, "<|im_end|>", {**COMMON, "turns": case(TURNS), "one-call": case(ONE_CALL, tools=TOOLS), "two-calls": case(TWO_CALLS, tools=TOOLS), "text-calls": case(TEXT_CALLS[:1] + [says("", tool_calls=TEXT_CALLS[1]["tool_calls"])] + TEXT_CALLS[2:], tools=TOOLS)}),
}


def render(template, bos, eos, c):
    given = {k: v for k, v in (("bos_token", bos), ("eos_token", eos)) if v is not None}
    try:
        texts, _ = render_jinja_template([c["messages"]], tools=c["tools"], chat_template=template, add_generation_prompt=c["add_generation_prompt"], **given, **c["extra"])
        return {"rendered": texts[0]}
    except jinja2.exceptions.TemplateError as e:
        return {"error": str(e)}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--demo", type=Path, help="directory with the demo model's chat_template.jinja")
    ap.add_argument("--out", type=Path, default=DEFAULT_OUT)
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    for name, (bos, eos, cases) in CASES.items():
        if name == "demo" and not a.demo:
            continue
        source = a.demo / "chat_template.jinja" if name == "demo" else HERE / "templates" / f"{name}.jinja"
        template = source.read_text()
        for label, c in cases.items():
            result = render(template, bos, eos, c)
            if ("error" in result) != label.startswith("error"):
                raise SystemExit(f"{name} {label}: {result}")
            record = dict(template=template, bos_token=bos, eos_token=eos, **c, **result)
            (a.out / f"{name}.{label}.json").write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
