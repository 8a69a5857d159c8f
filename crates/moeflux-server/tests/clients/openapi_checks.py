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
    tools = [it for it in tools if isinstance(it, dict)]
    names = [(it.get("function") or it).get("name") for it in tools]
    if isinstance(choice, dict):
        if choice.get("type") in ("auto", "none", "any"):
            return not tools
        return (choice.get("function") or choice).get("name") not in names
    return choice == "required" and not tools


def names_repeat(body):
    """Two tools of one name could not be told apart."""
    all_tools = (body.get("tools") or []) + (body.get("functions") or [])
    names = [(it.get("function") or it).get("name") for it in all_tools]
    return len(set(names)) < len(names)


def needs(field, other):
    """A field that makes sense beside another one only."""
    return lambda body: body.get(field) is not None and body.get(other) is not True


def last_text(body):
    """Who speaks last, what they say, and the whole message."""
    last = (body.get("messages") or [{"role": None}])[-1]
    content = last.get("content")
    if isinstance(content, list):
        texts = (it if isinstance(it, str) else it.get("text") or it.get("refusal") for it in content)
        content = "".join(it or "" for it in texts)
    return last["role"], content or "", last


def continues_nothing(body):
    """The beginning of an answer must be one: text, and the assistant's."""
    role, text, last = last_text(body)
    continues = body.get("continue_final_message") is True
    return continues and (role != "assistant" or not text or last.get("tool_calls") is not None)


def is_no_beginning(body):
    """White space at the end of an answer that has begun; or what is no text in it."""
    role, text, last = last_text(body)
    content = last.get("content")
    kinds = [it.get("type") for it in content if isinstance(it, dict)] if isinstance(
        content, list) else []
    calls = set(kinds) & {"tool_use", "thinking"}
    only = len(body["messages"]) == 1 and not text
    return role == "assistant" and (text != text.rstrip() or text.endswith(("\x1c", "\x1d", "\x1e",
                                    "\x1f")) or bool(calls) or only)


def is_begun(body):
    """What an answer cannot be that has begun as text."""
    role, text, _ = last_text(body)
    openai = body.get("continue_final_message") is True
    return role == "assistant" and bool(text) and (openai or "continue_final_message" not in body)


def lacks(*kinds):
    """Parts, calls and tools of some kinds need fields that others do not have."""
    return lambda body: any(word in json.dumps(body) for word in kinds)


def is_question(body):
    """The last question says nothing, or nothing that is text."""
    role, text, _ = last_text(body)
    return role == "user" and not text


def says_nothing(body):
    """A message without a part."""
    return any(isinstance(it, dict) and it.get("content") in ("", []) for it in body["messages"])


def has(field):
    return lambda body: body.get(field) is not None


RULES = [
    (r"top_logprobs", needs("top_logprobs", "logprobs")),
    (r"tool_choice(\..+)?|function_call", lambda body: choice_is_off(body) or isinstance(
        body.get("tool_choice", body.get("function_call")), (str, dict))),
    (r"(tools|functions)\[\d+\](\.function)?\.name", names_repeat),
    (r"tools(\[\d+\].*)?", has("tools")),
    (r"functions", has("functions")),
    (r"response_format(\..+)?", has("response_format")),
    (r"json_schema|guided_json|structured_outputs(\..+)?", lambda body: any(
        body.get(it) is not None for it in ("json_schema", "guided_json", "structured_outputs"))),
    (r"text\.format(\..+)?", has("text")),
    (r"output_(config\.)?format(\..+)?", lambda body: has("output_config")(body)
     or has("output_format")(body)),
    (r"(output_config|reasoning)\.effort", lambda body: has("output_config")(body)
     or has("reasoning")(body)),
    (r"prediction(\..+)?", has("prediction")),
    (r"best_of", lambda body: body["best_of"] != (body.get("n") or 1)),
    (r"echo|suffix", lambda body: body.get("echo") is True and body.get("logprobs") is not None),
    # What is referred to has to be there.
    (r"previous_response_id", has("previous_response_id")),
    (r"input", lambda body: isinstance(body["input"], list)),
    # Keys are text to JSON Schema, which cannot compare them with a number.
    (r"logit_bias.*", lambda body: bool(body.get("logit_bias"))),
    (r"continue_final_message", continues_nothing),
    (r"add_generation_prompt", lambda body: body.get("add_generation_prompt")
     == bool(body.get("continue_final_message"))),
    (r"messages(\[\d+\]\.content)?", is_no_beginning),
    (r"messages\[\d+\]\.content(\[\d+\]\.type)?", is_question),
    (r"messages\[\d+\]\.content", says_nothing),
    (r"messages\[\d+\]\.(content|tool_calls)\[\d+\]\.\w+", lacks("content", "tool_calls")),
    (r"reasoning_effort|tool_choice|response_format|output_config\.format|thinking", is_begun),
    (r"system(\[\d+\]\.\w+)?", has("system")),
    (r"input(\[\d+\]\..+)?", lambda body: isinstance(body["input"], list)),
    (r"include", has("include")),
    # The demo model has no tokens around a gap in a text, which a description of fields does not say.
    (r"suffix", lambda body: bool(body.get("suffix"))),
    (r"input_suffix", has("input_suffix")),
    (r"n", lambda body: has("input_suffix")(body) and body.get("n") != 1),
    (r"chat_template_kwargs\.\w+", lambda body: bool(body.get("chat_template_kwargs"))),
]


def is_excused(response, body):
    error = response.json()["error"]
    name = error.get("param") or error["message"].split(":")[0]
    if name == "body":
        return False
    # How many tokens a text has, the description cannot say.
    if error.get("code") == "context_length_exceeded" or name == "prompt is too long":
        return len(json.dumps(body)) > 10000
    return any(re.fullmatch(rule, name) and holds(body) for rule, holds in RULES)


@schemathesis.check
def what_is_described_is_accepted(ctx, response, case):
    try:
        return positive_data_acceptance(ctx, response, case)
    except Exception:
        if response.status_code in (400, 404) and is_excused(response, case.body):
            return None
        raise
