// Two turns and a tool's loop with Vercel's SDK as it comes: its default is the responses API, in which it refers to
// earlier items by their ids.
//
//     node vercel.mjs URL MODEL     with ai and @ai-sdk/openai in a folder of install.sh: NODE_PATH does not find modules,
//                                   so the file is copied there.
//
// The model has to think, call get_weather and say something of the result, as that of loops.py does.

import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const [url, name] = process.argv.slice(2);
const sent = [];
const spying = async (target, request) => {
  sent.push(JSON.parse(request.body));
  return fetch(target, request);
};
const model = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none", fetch: spying })(name);
const tools = {
  get_weather: tool({
    description: "The weather of a city.",
    inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } }, required: ["city"] }),
    execute: async ({ city }) => ({ city, temperature: 21 }),
  }),
};

function check(what, holds, shown) {
  console.log(`${holds ? "ok  " : "FAIL"} ${what}${shown === undefined ? "" : ` ${JSON.stringify(shown)}`}`);
  if (!holds) process.exitCode = 1;
}

// It asks for thoughts of models that it knows, and of others where it is told to.
const providerOptions = { openai: { reasoningSummary: "auto", forceReasoning: true } };
const asked = { model, tools, providerOptions, stopWhen: stepCountIs(3), maxRetries: 0, prompt: "What is the weather?" };
const whole = await generateText(asked);
check("a loop ends with text", whole.text.length > 0, whole.text);
check("it called the tool", whole.steps[0].toolCalls.length === 1, whole.steps[0].toolCalls.map((it) => it.input));
check("thoughts are read", (whole.steps[0].reasoningText ?? "").length > 0, whole.steps[0].reasoningText);
const references = sent.at(-1).input.filter((it) => it.type === "item_reference");
check("earlier items were referred to", references.length > 0, references);

const streamed = streamText({ ...asked, onError: () => {} });
let thought = "";
for await (const part of streamed.fullStream) {
  if (part.type === "reasoning-delta") thought += part.text;
  if (part.type === "error") throw part.error;
}
check("a stream is the same", (await streamed.text) === whole.text, await streamed.text);
check("its thoughts, too", thought === whole.steps[0].reasoningText, thought);

const messages = [{ role: "user", content: asked.prompt }, ...whole.response.messages, { role: "user", content: "Again?" }];
const next = await generateText({ ...asked, prompt: undefined, messages });
check("a second turn is answered", next.text.length > 0, next.text);
