//! How families write the calls of tools.

/// The token inside the tags of DeepSeek-V3.2's calls.
pub(crate) const DSML: &str = "｜DSML｜";

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
    /// The same without fence or kind: DeepSeek-V3.1.
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
}

/// Calls whose arguments are JSON text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonCalls {
    /// Around all calls.
    pub(crate) section: Option<[&'static str; 2]>,
    /// Begins a call.
    pub(crate) open: &'static str,
    /// Between that and the name.
    pub(crate) before_name: &'static str,
    /// Between the name and the arguments. A `#` stands for the number of the call.
    pub(crate) after_name: &'static str,
    /// The last part of that, which ends a name whatever stands between.
    pub(crate) name_ends: &'static str,
    /// Between the arguments and the end.
    pub(crate) after_arguments: &'static str,
    /// Ends a call.
    pub(crate) close: &'static str,
    /// Between two calls.
    pub(crate) between: &'static str,
}

/// Calls whose arguments are between tags, one by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaggedCalls {
    /// Around all calls.
    pub(crate) section: Option<[&'static str; 2]>,
    /// Begins a call.
    pub(crate) open: &'static str,
    /// Between that and the name.
    pub(crate) before_name: &'static str,
    /// Behind the name.
    pub(crate) after_name: &'static str,
    /// Before the name of an argument.
    pub(crate) key: &'static str,
    /// Between it and its value.
    pub(crate) value: &'static str,
    /// The same where the value is JSON, in syntaxes that say so.
    pub(crate) json_value: Option<&'static str>,
    /// Behind the value.
    pub(crate) value_end: &'static str,
    /// Behind the last argument.
    pub(crate) end: &'static str,
    /// Ends a call.
    pub(crate) close: &'static str,
    /// Between two calls.
    pub(crate) between: &'static str,
}

/// Either.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Calls {
    Json(JsonCalls),
    Tagged(TaggedCalls),
}

impl Calls {
    /// Around all calls.
    pub(crate) fn section(self) -> Option<[&'static str; 2]> {
        match self {
            Calls::Json(it) => it.section,
            Calls::Tagged(it) => it.section,
        }
    }

    /// Begins a call.
    pub(crate) fn open(self) -> &'static str {
        match self {
            Calls::Json(it) => it.open,
            Calls::Tagged(it) => it.open,
        }
    }

    /// Ends a call.
    pub(crate) fn close(self) -> &'static str {
        match self {
            Calls::Json(it) => it.close,
            Calls::Tagged(it) => it.close,
        }
    }

    /// Between two calls.
    pub(crate) fn between(self) -> &'static str {
        match self {
            Calls::Json(it) => it.between,
            Calls::Tagged(it) => it.between,
        }
    }
}

impl ToolSyntax {
    /// The one that a rendered conversation, or else a template's text, shows the model.
    pub(crate) fn find(template: &str) -> Option<ToolSyntax> {
        let has = |text: &str| template.contains(text);
        match () {
            () if has("<|tool_call_argument_begin|>") => Some(ToolSyntax::Kimi),
            () if has("<|channel|>") && (has("to=functions.") || has("<|constrain|>")) => {
                Some(ToolSyntax::Harmony)
            }
            () if has("<｜tool▁calls▁begin｜>") && has("```json") => {
                Some(ToolSyntax::DeepSeekFenced)
            }
            () if has("<｜tool▁calls▁begin｜>") => Some(ToolSyntax::DeepSeek),
            () if has("<minimax:tool_call>") || has("minimax:tool_call") => {
                Some(ToolSyntax::MiniMax)
            }
            () if has(DSML) => Some(ToolSyntax::Dsml),
            () if has("<arg_key>") => Some(ToolSyntax::Glm),
            () if has("<function=") => Some(ToolSyntax::QwenXml),
            () if has("<tool_call>") => Some(ToolSyntax::Hermes),
            () => None,
        }
    }

    pub(crate) fn calls(self) -> Calls {
        let json = JsonCalls {
            section: None,
            open: "<tool_call>",
            before_name: "",
            after_name: "",
            name_ends: "",
            after_arguments: "",
            close: "</tool_call>",
            between: "\n",
        };
        let tagged = TaggedCalls {
            section: None,
            open: "<tool_call>",
            before_name: "",
            after_name: "\n",
            key: "",
            value: "",
            json_value: None,
            value_end: "",
            end: "",
            close: "</tool_call>",
            between: "\n",
        };
        let deepseek = JsonCalls {
            section: Some(["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"]),
            open: "<｜tool▁call▁begin｜>",
            after_name: "<｜tool▁sep｜>",
            name_ends: "<｜tool▁sep｜>",
            close: "<｜tool▁call▁end｜>",
            between: "",
            ..json
        };
        match self {
            ToolSyntax::Hermes => Calls::Json(JsonCalls {
                before_name: "\n{\"name\": \"",
                after_name: "\", \"arguments\": ",
                name_ends: "\", \"arguments\": ",
                after_arguments: "}\n",
                ..json
            }),
            ToolSyntax::DeepSeekFenced => Calls::Json(JsonCalls {
                before_name: "function<｜tool▁sep｜>",
                after_name: "\n```json\n",
                name_ends: "\n```json\n",
                after_arguments: "\n```",
                between: "\n",
                ..deepseek
            }),
            ToolSyntax::DeepSeek => Calls::Json(deepseek),
            ToolSyntax::Kimi => Calls::Json(JsonCalls {
                section: Some(["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"]),
                open: "<|tool_call_begin|>",
                before_name: "functions.",
                after_name: ":#<|tool_call_argument_begin|>",
                name_ends: "<|tool_call_argument_begin|>",
                close: "<|tool_call_end|>",
                between: "",
                ..json
            }),
            ToolSyntax::Harmony => Calls::Json(JsonCalls {
                open: "<|channel|>commentary to=functions.",
                after_name: " <|constrain|>json<|message|>",
                name_ends: "<|message|>",
                close: "<|call|>",
                between: "",
                ..json
            }),
            ToolSyntax::QwenXml => Calls::Tagged(TaggedCalls {
                before_name: "\n<function=",
                after_name: ">\n",
                key: "<parameter=",
                value: ">\n",
                value_end: "\n</parameter>\n",
                end: "</function>\n",
                ..tagged
            }),
            ToolSyntax::Glm => Calls::Tagged(TaggedCalls {
                key: "<arg_key>",
                value: "</arg_key>\n<arg_value>",
                value_end: "</arg_value>\n",
                ..tagged
            }),
            ToolSyntax::MiniMax => Calls::Tagged(TaggedCalls {
                section: Some(["<minimax:tool_call>\n", "</minimax:tool_call>"]),
                open: "<invoke name=\"",
                after_name: "\">\n",
                key: "<parameter name=\"",
                value: "\">",
                value_end: "</parameter>\n",
                close: "</invoke>\n",
                between: "",
                ..tagged
            }),
            ToolSyntax::Dsml => Calls::Tagged(TaggedCalls {
                section: Some(["<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"]),
                open: "<｜DSML｜invoke name=\"",
                after_name: "\">\n",
                key: "<｜DSML｜parameter name=\"",
                value: "\" string=\"true\">",
                json_value: Some("\" string=\"false\">"),
                value_end: "</｜DSML｜parameter>\n",
                close: "</｜DSML｜invoke>\n",
                between: "",
                ..tagged
            }),
        }
    }

    /// The token that calls begin with.
    pub(crate) fn first_token(self) -> &'static str {
        let calls = self.calls();
        match self {
            ToolSyntax::Harmony => "<|channel|>",
            ToolSyntax::Dsml => DSML,
            ToolSyntax::MiniMax => "<minimax:tool_call>",
            _ => calls.section().map_or(calls.open(), |[open, _]| open),
        }
    }

    /// Every token with a name of its own that such calls may consist of.
    pub(crate) fn markers(self) -> Vec<&'static str> {
        let mut markers = match self.calls() {
            Calls::Json(it) => {
                let mut all = it.section.map_or(Vec::new(), Vec::from);
                all.extend([it.open, it.close, it.name_ends]);
                all
            }
            Calls::Tagged(it) => vec![it.open, it.close, it.key],
        };
        markers.extend(match self {
            ToolSyntax::Glm => &["</arg_key>", "<arg_value>", "</arg_value>"][..],
            ToolSyntax::DeepSeekFenced => &["<｜tool▁sep｜>"],
            ToolSyntax::Dsml => &[DSML],
            ToolSyntax::MiniMax => &["<minimax:tool_call>", "</minimax:tool_call>"],
            ToolSyntax::Harmony => {
                &["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"]
            }
            _ => &[],
        });
        markers
    }
}
