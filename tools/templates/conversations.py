"""Conversations that chat templates are compared on. Each is what a template gets, by name."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather of a "city" <today> & later',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Name, e.g. Zürich"},
                    "days": {"type": "integer", "minimum": 1, "default": 1},
                    "unit": {"type": "string", "enum": ["°C", "°F"]},
                    "where": {
                        "type": "object",
                        "properties": {
                            "lat": {"type": "number"},
                            "tags": {"type": "array", "items": {"type": ["string", "null"]}},
                        },
                    },
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "clock", "description": "Time", "parameters": {"type": "object", "properties": {}}},
    },
]
ARGUMENTS = {
    "city": "Zürich",
    "days": 3,
    "exact": True,
    "share": 1.5,
    "note": None,
    "where": {"lat": 47.37, "tags": ["a", None]},
}


def says(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, number=0):
    identifier = f"functions.{name}:{number}"
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content, name="get_weather", number=0):
    return says("tool", content, tool_call_id=f"functions.{name}:{number}", name=name)


ASK = says("user", "What is 2+2?")
SYSTEM = says("system", "You are terse.\nAlways.")
WEATHER = says("user", "Weather in Zürich?")
ONE_CALL = says("assistant", "", tool_calls=[call("get_weather", ARGUMENTS)])
NULL_CALL = says("assistant", None, tool_calls=[call("get_weather", ARGUMENTS)])
TWO_CALLS = says("assistant", "", tool_calls=[call("get_weather", {"city": "Oslo"}), call("clock", {}, 1)])
TEXT_CALL = says("assistant", "Let me look.", tool_calls=[call("get_weather", {"city": "Oslo", "days": 2})])
THOUGHT = says("assistant", "4", reasoning_content="Add them.\nTwice.", reasoning="Add them.\nTwice.", thinking="Add them.\nTwice.")
THOUGHT_CALL = says(
    "assistant", "", reasoning_content="I need it.", thinking="I need it.", tool_calls=[call("get_weather", {"city": "Oslo"})]
)
TAGGED = says("assistant", "<think>\nadd them\n</think>\n\n4")
SEEN = result('{"t": 21.5, "sky": "☀"}')


def conversation(messages, tools=None, generate=True, **more):
    return {"messages": messages, "tools": tools, "add_generation_prompt": generate, **more}


CONVERSATIONS = {
    "one question": conversation([ASK]),
    "no prompt for an answer": conversation([ASK, says("assistant", "4")], generate=False),
    "system": conversation([SYSTEM, ASK]),
    "system alone": conversation([SYSTEM], generate=False),
    "several turns": conversation([SYSTEM, ASK, says("assistant", "4"), says("user", "And 3+3?"), says("assistant", " 6 \n"), says("user", "Thanks")]),
    "thinking on": conversation([ASK], enable_thinking=True, thinking=True),
    "thinking off": conversation([ASK], enable_thinking=False, thinking=False),
    "thinking off after turns": conversation([SYSTEM, ASK, THOUGHT, says("user", "Sure?")], enable_thinking=False),
    "effort": conversation([ASK], reasoning_effort="high"),
    "thoughts of an earlier turn": conversation([ASK, THOUGHT, says("user", "Sure?")]),
    "thoughts of the last turn": conversation([ASK, THOUGHT], generate=False),
    "thoughts in tags": conversation([ASK, TAGGED, says("user", "Sure?")]),
    "thoughts kept": conversation([ASK, THOUGHT, says("user", "Sure?")], clear_thinking=False, preserve_thinking=True),
    "tools, no call": conversation([SYSTEM, WEATHER], TOOLS),
    "tools, no system": conversation([WEATHER], TOOLS),
    "tools, thinking off": conversation([WEATHER], TOOLS, enable_thinking=False, thinking=False),
    "empty tools": conversation([WEATHER], []),
    "one call": conversation([WEATHER, ONE_CALL], TOOLS, generate=False),
    "call without text": conversation([WEATHER, NULL_CALL, SEEN], TOOLS),
    "call and result": conversation([SYSTEM, WEATHER, ONE_CALL, SEEN], TOOLS),
    "call, result, answer": conversation([WEATHER, ONE_CALL, SEEN, says("assistant", "21.5 °C."), says("user", "And now?")], TOOLS),
    "two calls": conversation([WEATHER, TWO_CALLS, result("rain"), result("12:30", "clock", 1)], TOOLS),
    "text beside a call": conversation([WEATHER, TEXT_CALL, result("rain")], TOOLS),
    "thoughts before a call": conversation([WEATHER, THOUGHT_CALL, result("rain")], TOOLS),
    "calls in two turns": conversation([WEATHER, ONE_CALL, SEEN, says("assistant", "Sun."), says("user", "Time?"), says("assistant", "", tool_calls=[call("clock", {}, 1)]), result("12:30", "clock", 1)], TOOLS),
    "second call after a result": conversation([WEATHER, THOUGHT_CALL, result("rain"), says("assistant", "", reasoning_content="And?", thinking="And?", tool_calls=[call("clock", {}, 1)]), result("12:30", "clock", 1)], TOOLS),
    "empty contents": conversation([says("system", ""), says("user", ""), says("assistant", ""), says("user", "?")]),
    "unicode and markup": conversation([says("system", "Réponds 🙂."), says("user", "naïve — 你好\u200b \"q\" <b>&amp;</b> \\n {{ x }}"), says("assistant", "Ça va\t!\r\n\n"), says("user", "नमस्ते")]),
    "parts": conversation([says("user", [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}])]),
    "developer": conversation([says("developer", "Be kind."), ASK]),
    "late system": conversation([ASK, says("assistant", "4"), SYSTEM, says("user", "More")]),
    "two users": conversation([ASK, says("user", "Quick!")]),
    "assistant first": conversation([says("assistant", "Hello."), ASK]),
    "long": conversation([message for i in range(20) for message in (says("user", f"Question {i}"), says("assistant", f"Answer {i}", reasoning_content=f"Thought {i}"))] + [ASK]),
}
