//! Fields of Anthropic's API that change nothing here: they are taken and dropped.

/// Fields of a request.
pub(super) const REQUEST: &[&str] = &[
    "betas",
    "anthropic_beta",
    "anthropic_version",
    "context_management",
    "inference_geo",
    "speed",
    "user_profile_id",
    "thinking.display",
    "output_config.task_budget",
    "output_config.format.name",
    "output_config.format.description",
    "output_config.format.strict",
    "output_format.name",
    "output_format.description",
    "output_format.strict",
];

/// Fields of messages and of their blocks.
pub(super) const MESSAGES: &[&str] = &[
    "system[].cache_control",
    "system[].citations",
    "messages[].id",
    "messages[].type",
    "messages[].model",
    "messages[].stop_reason",
    "messages[].stop_sequence",
    "messages[].stop_details",
    "messages[].usage",
    "messages[].container",
    "messages[].context_management",
    "messages[].cache_control",
    "messages[].content[].cache_control",
    "messages[].content[].citations",
    "messages[].content[].signature",
    "messages[].content[].data",
    "messages[].content[].caller",
    "messages[].content[].context",
    "messages[].content[].file_id",
];

/// Fields of tools, those of the server's own tools included.
pub(super) const TOOLS: &[&str] = &[
    "tools[].cache_control",
    "tools[].eager_input_streaming",
    "tools[].defer_loading",
    "tools[].allowed_callers",
    "tools[].input_examples",
    "tools[].max_characters",
    "tools[].max_uses",
    "tools[].max_content_tokens",
    "tools[].allowed_domains",
    "tools[].blocked_domains",
    "tools[].user_location",
    "tools[].citations",
    "tools[].use_cache",
    "tools[].display_width_px",
    "tools[].display_height_px",
    "tools[].display_number",
    "tools[].enable_zoom",
    "tools[].mcp_server_name",
    "tools[].default_config",
    "tools[].configs",
    "tools[].model",
];
