//! The agents that can be launched: where they are installed, and how each finds the server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::server::Facts;
use crate::args::Agent;

/// How long agents wait for a reply, in milliseconds: models that stream from a drive take their
/// time to read a long prompt.
const PATIENCE_MS: u32 = 3_600_000;

/// The variable that holds the key for agents that are given the name of a variable.
pub(super) const KEY_VARIABLE: &str = "MOEFLUX_API_KEY";

/// What an agent is started with.
pub(super) struct Setup {
    pub(super) variables: Vec<(&'static str, Value)>,
    /// Variables of the user's that would lead elsewhere.
    pub(super) removed: &'static [&'static str],
    /// Arguments before those of the user.
    pub(super) args: Vec<OsString>,
}

/// The value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    /// The server's key, which is never printed.
    Key,
}

impl Agent {
    /// Its product name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Agent::Claude => "Claude Code",
            Agent::Codex => "Codex",
            Agent::Opencode => "opencode",
        }
    }

    /// The file that is run.
    pub(super) fn program(self) -> &'static str {
        match self {
            Agent::Claude => "claude",
            Agent::Codex => "codex",
            Agent::Opencode => "opencode",
        }
    }

    /// The command that installs it.
    pub(super) fn install_command(self) -> &'static str {
        match self {
            Agent::Claude => "npm install -g @anthropic-ai/claude-code",
            Agent::Codex => "npm install -g @openai/codex",
            Agent::Opencode => "npm install -g opencode-ai",
        }
    }

    /// Tokens of its first prompt, with instructions and tools, in thousands and rounded up.
    pub(super) fn first_prompt(self) -> usize {
        match self {
            Agent::Claude => 20_000,
            Agent::Codex | Agent::Opencode => 10_000,
        }
    }

    /// The program's path: from `PATH`, else where its installer puts it.
    pub(super) fn find(self) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let home = std::env::var_os(if cfg!(windows) { "USERPROFILE" } else { "HOME" });
        let home = home.map(PathBuf::from).unwrap_or_default();
        let fallbacks: &[&str] = match self {
            Agent::Claude => &[".local/bin", ".claude/local"],
            Agent::Codex => &[],
            Agent::Opencode => &[".opencode/bin"],
        };
        let fallbacks = fallbacks.iter().map(|dir| home.join(dir));
        std::env::split_paths(&path).chain(fallbacks).find_map(|dir| in_dir(&dir, self.program()))
    }

    /// What leads it to a server. `url` has no slash at its end.
    pub(super) fn setup(self, url: &str, facts: &Facts, has_key: bool) -> Setup {
        match self {
            Agent::Claude => claude(url, facts, has_key),
            Agent::Codex => codex(url, facts, has_key),
            Agent::Opencode => opencode(url, facts, has_key),
        }
    }
}

impl Setup {
    /// Has the agent trust what a file of certificates has: those on Node.js, and those in Rust.
    pub(super) fn trust(&mut self, ca: Option<&Path>) {
        let Some(ca) = ca else { return };
        let ca = std::path::absolute(ca).unwrap_or_else(|_| ca.to_owned());
        for name in ["NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"] {
            self.variables.push((name, text(ca.display())));
        }
    }
}

/// The program `name` in a folder.
fn in_dir(dir: &Path, name: &str) -> Option<PathBuf> {
    let extensions: &[&str] = if cfg!(windows) { &["exe", "cmd", "bat"] } else { &[""] };
    let files = extensions.iter().map(|extension| dir.join(name).with_extension(extension));
    files.into_iter().find(|file| is_program(file))
}

#[cfg(unix)]
fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(file: &Path) -> bool {
    file.is_file()
}

/// Tokens of an answer that leave an agent most of the context.
fn longest_answer(ctx: usize) -> usize {
    (ctx / 4).clamp(1, 32_000)
}

fn text(value: impl ToString) -> Value {
    Value::Text(value.to_string())
}

fn claude(url: &str, facts: &Facts, has_key: bool) -> Setup {
    let mut variables = vec![
        ("ANTHROPIC_BASE_URL", text(url)),
        ("ANTHROPIC_AUTH_TOKEN", if has_key { Value::Key } else { text("none") }),
    ];
    // One model takes all parts, also those that go to a small one.
    for name in [
        "ANTHROPIC_MODEL",
        "ANTHROPIC_DEFAULT_OPUS_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL",
        "ANTHROPIC_SMALL_FAST_MODEL",
        "CLAUDE_CODE_SUBAGENT_MODEL",
    ] {
        variables.push((name, text(&facts.model)));
    }
    if let Some(ctx) = facts.ctx {
        variables.push(("CLAUDE_CODE_MAX_CONTEXT_TOKENS", text(ctx)));
        variables.push(("CLAUDE_CODE_MAX_OUTPUT_TOKENS", text(longest_answer(ctx))));
    }
    variables.extend([
        // The header stands at the beginning of every prompt and changes: nothing behind it could
        // be reused.
        ("CLAUDE_CODE_ATTRIBUTION_HEADER", text(0)),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", text(1)),
        ("API_TIMEOUT_MS", text(PATIENCE_MS)),
    ]);
    let removed = &[
        "ANTHROPIC_API_KEY",
        "CLAUDE_CODE_OAUTH_TOKEN",
        "CLAUDE_CODE_USE_BEDROCK",
        "CLAUDE_CODE_USE_FOUNDRY",
        "CLAUDE_CODE_USE_VERTEX",
    ];
    Setup { variables, removed, args: Vec::new() }
}

fn codex(url: &str, facts: &Facts, has_key: bool) -> Setup {
    // Strings of JSON are strings of TOML too.
    let string = |value: &str| json!(value).to_string();
    let mut settings = vec![
        ("model", string(&facts.model)),
        ("model_provider", string("moeflux")),
        ("model_providers.moeflux.name", string("moeflux")),
        ("model_providers.moeflux.base_url", string(&format!("{url}/v1"))),
        ("model_providers.moeflux.wire_api", string("responses")),
        ("model_providers.moeflux.stream_idle_timeout_ms", PATIENCE_MS.to_string()),
    ];
    let mut variables = Vec::new();
    if has_key {
        settings.push(("model_providers.moeflux.env_key", string(KEY_VARIABLE)));
        variables.push((KEY_VARIABLE, Value::Key));
    }
    if let Some(ctx) = facts.ctx {
        settings.push(("model_context_window", ctx.to_string()));
    }
    let args = settings.into_iter().flat_map(|(name, value)| {
        [OsString::from("-c"), OsString::from(format!("{name}={value}"))]
    });
    Setup { variables, removed: &[], args: args.collect() }
}

fn opencode(url: &str, facts: &Facts, has_key: bool) -> Setup {
    let key = if has_key { format!("{{env:{KEY_VARIABLE}}}") } else { String::from("none") };
    let mut model = json!({"name": facts.model, "tool_call": true});
    if let Some(ctx) = facts.ctx {
        model["limit"] = json!({"context": ctx, "output": longest_answer(ctx)});
    }
    let name = format!("moeflux/{}", facts.model);
    let config = json!({
        "$schema": "https://opencode.ai/config.json",
        "model": name,
        "small_model": name,
        "provider": {"moeflux": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "moeflux",
            "options": {
                "baseURL": format!("{url}/v1"),
                "apiKey": key,
                "timeout": PATIENCE_MS,
                "headerTimeout": PATIENCE_MS,
                "chunkTimeout": PATIENCE_MS,
            },
            "models": {facts.model.as_str(): model},
        }},
    });
    let mut variables = vec![("OPENCODE_CONFIG_CONTENT", text(config))];
    if has_key {
        variables.push((KEY_VARIABLE, Value::Key));
    }
    Setup { variables, removed: &[], args: Vec::new() }
}
