//! Syntaxes of calls with a name of their own.

use std::sync::Arc;

use super::syntax::{Calls, DSML, JsonCalls, TaggedCalls};

/// Calls in a syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownCalls {
    pub(super) syntax: ToolSyntax,
    pub(super) calls: Arc<Calls>,
}

impl KnownCalls {
    /// As the table has them.
    pub(super) fn of(syntax: ToolSyntax) -> KnownCalls {
        KnownCalls { syntax, calls: Arc::new(syntax.calls()) }
    }

    /// As a template writes them.
    pub(super) fn read(calls: Calls) -> KnownCalls {
        KnownCalls { syntax: ToolSyntax::named(&calls), calls: Arc::new(calls) }
    }
}

/// How a model calls tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolSyntax {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen up to 3.
    Hermes,
    /// `<tool_call><function=…><parameter=…>…`: Qwen 3.5, Qwen3-Coder.
    QwenXml,
    /// `<tool_call>name<arg_key>…</arg_key><arg_value>…`: GLM from 4.5 on.
    Glm,
    /// A name, a separator and JSON between fullwidth bars, in a fence: DeepSeek-V3.
    DeepSeekFenced,
    /// A name, a separator and JSON between fullwidth bars, without fence or kind: DeepSeek-V3.1.
    DeepSeek,
    /// `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>…`: Kimi K2.
    Kimi,
    /// Channels and recipients: gpt-oss.
    Harmony,
    /// `<minimax:tool_call><invoke name=…><parameter name=…>…`: MiniMax-M2.
    MiniMax,
    /// `<｜DSML｜function_calls>`, `<｜DSML｜invoke name=…>`, and parameters that say whether they
    /// are strings: DeepSeek-V3.2.
    Dsml,
    /// The same in `<｜DSML｜tool_calls>`: DeepSeek-V4.
    DsmlToolCalls,
    /// `[TOOL_CALLS] [{"name": …, "arguments": …}]`: Mixtral 8x22B.
    Mistral,
    /// `<|tool_call>call:name{key:<|"|>text<|"|>,…}<tool_call|>`: Gemma 4.
    Gemma,
    /// A syntax without a name here, written as the template writes it.
    Other,
}

impl ToolSyntax {
    /// All that have a name.
    pub const ALL: [ToolSyntax; 12] = [
        ToolSyntax::Hermes,
        ToolSyntax::QwenXml,
        ToolSyntax::Glm,
        ToolSyntax::DeepSeekFenced,
        ToolSyntax::DeepSeek,
        ToolSyntax::Kimi,
        ToolSyntax::Harmony,
        ToolSyntax::MiniMax,
        ToolSyntax::Dsml,
        ToolSyntax::DsmlToolCalls,
        ToolSyntax::Mistral,
        ToolSyntax::Gemma,
    ];

    /// The name of calls that were read out of a rendered conversation.
    pub(super) fn named(calls: &Calls) -> ToolSyntax {
        let known = ToolSyntax::ALL.into_iter().find(|syntax| syntax.calls().is_like(calls));
        known.unwrap_or(ToolSyntax::Other)
    }

    /// The one whose markup the text of a prompt shows, for templates that describe calls to the
    /// model and never render any.
    pub(super) fn described(prompt: &str) -> Option<ToolSyntax> {
        let has = |text: &str| prompt.contains(text);
        match () {
            () if has("<|tool_call_argument_begin|>") => Some(ToolSyntax::Kimi),
            () if has("<|channel|>") && (has("to=functions.") || has("<|constrain|>")) => {
                Some(ToolSyntax::Harmony)
            }
            () if has("<｜tool▁calls▁begin｜>") && has("```json") => {
                Some(ToolSyntax::DeepSeekFenced)
            }
            () if has("<｜tool▁calls▁begin｜>") => Some(ToolSyntax::DeepSeek),
            () if has("<minimax:tool_call>") => Some(ToolSyntax::MiniMax),
            () if has("<｜DSML｜tool_calls>") => Some(ToolSyntax::DsmlToolCalls),
            () if has(DSML) => Some(ToolSyntax::Dsml),
            () if has("<|tool_call>call:") => Some(ToolSyntax::Gemma),
            () if has("<arg_key>") => Some(ToolSyntax::Glm),
            () if has("<function=") => Some(ToolSyntax::QwenXml),
            () if has("[TOOL_CALLS]") => Some(ToolSyntax::Mistral),
            () if has("<tool_call>") => Some(ToolSyntax::Hermes),
            () => None,
        }
    }

    /// A name for messages.
    pub fn name(self) -> &'static str {
        match self {
            ToolSyntax::Hermes => "Hermes (JSON in <tool_call>)",
            ToolSyntax::QwenXml => "Qwen3-Coder (<function=…> in <tool_call>)",
            ToolSyntax::Glm => "GLM (<arg_key> and <arg_value>)",
            ToolSyntax::DeepSeekFenced => "DeepSeek-V3 (fenced JSON)",
            ToolSyntax::DeepSeek => "DeepSeek-V3.1",
            ToolSyntax::Kimi => "Kimi K2",
            ToolSyntax::Harmony => "harmony (gpt-oss)",
            ToolSyntax::MiniMax => "MiniMax-M2",
            ToolSyntax::Dsml => "DeepSeek-V3.2 (DSML)",
            ToolSyntax::DsmlToolCalls => "DeepSeek-V4 (DSML)",
            ToolSyntax::Mistral => "Mistral ([TOOL_CALLS] and a list)",
            ToolSyntax::Gemma => "Gemma 4 (call:name{key:value})",
            ToolSyntax::Other => "as the template writes calls",
        }
    }

    pub(crate) fn calls(self) -> Calls {
        let text = |text: &'static str| text.into();
        let json = JsonCalls {
            section: None,
            open: text("<tool_call>"),
            before_name: text(""),
            after_name: text(""),
            name_ends: text(""),
            quote: None,
            has_id: false,
            after_arguments: text(""),
            close: text("</tool_call>"),
            between: text("\n"),
        };
        let tagged = TaggedCalls {
            section: None,
            open: text("<tool_call>"),
            before_name: text(""),
            after_name: text("\n"),
            key: text(""),
            value: text(""),
            json_value: None,
            value_end: text(""),
            end: text(""),
            close: text("</tool_call>"),
            between: text("\n"),
        };
        let deepseek = JsonCalls {
            section: Some(["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"].map(text)),
            open: text("<｜tool▁call▁begin｜>"),
            after_name: text("<｜tool▁sep｜>"),
            name_ends: text("<｜tool▁sep｜>"),
            close: text("<｜tool▁call▁end｜>"),
            between: text(""),
            ..json.clone()
        };
        let dsml = TaggedCalls {
            section: Some(["<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>"].map(text)),
            open: text("<｜DSML｜invoke name=\""),
            after_name: text("\">\n"),
            key: text("<｜DSML｜parameter name=\""),
            value: text("\" string=\"true\">"),
            json_value: Some(text("\" string=\"false\">")),
            value_end: text("</｜DSML｜parameter>\n"),
            close: text("</｜DSML｜invoke>"),
            ..tagged.clone()
        };
        match self {
            ToolSyntax::Hermes | ToolSyntax::Other => Calls::Json(JsonCalls {
                before_name: text("\n{\"name\": \""),
                after_name: text("\", \"arguments\": "),
                name_ends: text("\", \"arguments\": "),
                after_arguments: text("}\n"),
                ..json
            }),
            ToolSyntax::Mistral => Calls::Json(JsonCalls {
                section: Some(["[TOOL_CALLS] [", "]"].map(text)),
                open: text("{\"name\": \""),
                after_name: text("\", \"arguments\": "),
                name_ends: text("\", \"arguments\": "),
                has_id: true,
                close: text("}"),
                between: text(", "),
                ..json
            }),
            ToolSyntax::Gemma => Calls::Json(JsonCalls {
                open: text("<|tool_call>"),
                before_name: text("call:"),
                name_ends: text("{"),
                quote: Some(text("<|\"|>")),
                close: text("<tool_call|>"),
                between: text(""),
                ..json
            }),
            ToolSyntax::DeepSeekFenced => Calls::Json(JsonCalls {
                before_name: text("function<｜tool▁sep｜>"),
                after_name: text("\n```json\n"),
                name_ends: text("\n```json\n"),
                after_arguments: text("\n```"),
                between: text("\n"),
                ..deepseek
            }),
            ToolSyntax::DeepSeek => Calls::Json(deepseek),
            ToolSyntax::Kimi => Calls::Json(JsonCalls {
                section: Some(
                    ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"].map(text),
                ),
                open: text("<|tool_call_begin|>"),
                before_name: text("functions."),
                after_name: text(":#<|tool_call_argument_begin|>"),
                name_ends: text("<|tool_call_argument_begin|>"),
                close: text("<|tool_call_end|>"),
                between: text(""),
                ..json
            }),
            ToolSyntax::Harmony => Calls::Channels,
            ToolSyntax::QwenXml => Calls::Tagged(TaggedCalls {
                before_name: text("\n<function="),
                after_name: text(">\n"),
                key: text("<parameter="),
                value: text(">\n"),
                value_end: text("\n</parameter>\n"),
                end: text("</function>\n"),
                ..tagged
            }),
            ToolSyntax::Glm => Calls::Tagged(TaggedCalls {
                key: text("<arg_key>"),
                value: text("</arg_key>\n<arg_value>"),
                value_end: text("</arg_value>\n"),
                ..tagged
            }),
            ToolSyntax::MiniMax => Calls::Tagged(TaggedCalls {
                section: Some(["<minimax:tool_call>\n", "\n</minimax:tool_call>"].map(text)),
                open: text("<invoke name=\""),
                after_name: text("\">\n"),
                key: text("<parameter name=\""),
                value: text("\">"),
                value_end: text("</parameter>\n"),
                close: text("</invoke>"),
                ..tagged
            }),
            ToolSyntax::Dsml => Calls::Tagged(TaggedCalls {
                section: Some(
                    ["<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"].map(text),
                ),
                ..dsml
            }),
            ToolSyntax::DsmlToolCalls => Calls::Tagged(dsml),
        }
    }
}
