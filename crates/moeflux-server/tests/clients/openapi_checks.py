"""What the description of the API says is accepted, is: a check of schemathesis' own, and what it
cannot know.

JSON Schema says what a field may be, not what its value means. Where a request keeps to the
description and is refused all the same, the refusal must name a field and one of the rules below
must really be broken by it; everything else is found as before.
"""

import json
import re

import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance


def choice_is_off(body):
    """A tool is asked for that is not there. Which names there are the request itself says."""
    choice, tools = body.get("tool_choice"), body.get("tools") or []
    names = [it.get("function", it).get("name") for it in tools]
    if isinstance(choice, dict):
        if choice.get("type") in ("auto", "none", "any"):
            return not tools
        return choice.get("function", choice).get("name") not in names
    return choice == "required" and not tools


def names_repeat(body):
    """Two tools of one name could not be told apart."""
    names = [it.get("function", it).get("name") for it in body.get("tools") or []]
    return len(set(names)) < len(names)


def has_schema(field):
    """Any object passes for a JSON schema; what a grammar cannot enforce is refused."""
    def holds(body):
        text = json.dumps(body.get(field))
        return '"schema": {"' in text or '"parameters": {"' in text or '"input_schema": {"' in text
    return holds


def needs(field, other):
    """A field that makes sense beside another one only."""
    return lambda body: body.get(field) is not None and body.get(other) is not True


def last_text(body):
    last = body["messages"][-1]
    content = last.get("content")
    if isinstance(content, list):
        content = "".join(it.get("text", "") for it in content)
    return last["role"], content or "", last


def continues_nothing(body):
    """The beginning of an answer must be one: text, and the assistant's."""
    role, text, last = last_text(body)
    continues = body.get("continue_final_message") is True
    return continues and (role != "assistant" or not text or last.get("tool_calls") is not None)


def is_no_beginning(body):
    """White space at the end of an answer that has begun; or what is no text in it."""
    role, text, last = last_text(body)
    kinds = [it.get("type") for it in last["content"]] if isinstance(last["content"], list) else []
    calls = set(kinds) & {"tool_use", "thinking"}
    only = len(body["messages"]) == 1 and not text
    return role == "assistant" and (text != text.rstrip() or text.endswith(("\x1c", "\x1d", "\x1e",
                                    "\x1f")) or bool(calls) or only)


def is_begun(body):
    """What an answer cannot be that has begun as text."""
    role, text, _ = last_text(body)
    openai = body.get("continue_final_message") is True
    return role == "assistant" and bool(text) and (openai or "continue_final_message" not in body)


RULES = [
    (r"stream_options", needs("stream_options", "stream")),
    (r"top_logprobs", needs("top_logprobs", "logprobs")),
    (r"tool_choice(\.name)?", choice_is_off),
    (r"tools\[\d+\](\.function)?\.name", names_repeat),
    (r"tools", has_schema("tools")),
    (r"response_format", has_schema("response_format")),
    (r"text\.format", has_schema("text")),
    (r"output_config\.format", has_schema("output_config")),
    (r"best_of", lambda body: body["best_of"] != (body.get("n") or 1)),
    (r"echo", lambda body: body.get("echo") is True and body.get("logprobs") is not None),
    # Keys are text to JSON Schema, which cannot compare them with a number.
    (r"logit_bias\.\d+", lambda body: any(int(it) > 8191 for it in body["logit_bias"])),
    (r"continue_final_message", continues_nothing),
    (r"add_generation_prompt", lambda body: body.get("add_generation_prompt")
     == bool(body.get("continue_final_message"))),
    (r"messages(\[\d+\]\.content)?", is_no_beginning),
    (r"tool_choice|response_format|output_config\.format", is_begun),
    # What a model thought is not given to it again, so that nothing is left.
    (r"input", lambda body: all(it.get("type") == "reasoning" for it in body["input"])),
    (r"chat_template_kwargs\.\w+", lambda body: bool(body.get("chat_template_kwargs"))),
]


def is_excused(response, body):
    error = response.json()["error"]
    name = error.get("param") or error["message"].split(":")[0]
    return any(re.fullmatch(rule, name) and holds(body) for rule, holds in RULES)


@schemathesis.check
def what_is_described_is_accepted(ctx, response, case):
    try:
        return positive_data_acceptance(ctx, response, case)
    except Exception:
        if response.status_code == 400 and is_excused(response, case.body):
            return None
        raise
