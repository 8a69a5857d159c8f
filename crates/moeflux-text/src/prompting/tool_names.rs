//! Names of tools as models can write them.
//!
//! Clients name tools as they like: `github:repos/list`, `mcp.files.read`. Models were trained on
//! letters, digits, `_` and `-`, and syntaxes of calls end names at other characters. Each other
//! character becomes `_`, and the client's names come back in calls. A name depends on the list of
//! tools alone, so that the prompts of a conversation begin alike.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::conversation::{Conversation, ToolChoice};
use crate::output::Delta;

/// The names of a request's tools that models read in another form.
#[derive(Clone, Debug, Default)]
pub(super) struct ToolNames {
    /// By the client's name.
    for_model: HashMap<String, String>,
    /// By the model's name.
    for_client: HashMap<String, String>,
}

impl ToolNames {
    /// The names that need another form among those of a list. Names that are good as they are
    /// stay; of others that become the same, the later ones are numbered.
    fn of<'a>(names: impl Iterator<Item = &'a str> + Clone) -> ToolNames {
        let mut found = ToolNames::default();
        let mut taken: HashSet<String> =
            names.clone().filter(|name| is_plain(name)).map(str::to_owned).collect();
        for name in names.filter(|name| !is_plain(name)) {
            let plain = plain(name);
            let numbered = (2..).map(|i| format!("{plain}_{i}"));
            let mut candidates = std::iter::once(plain.clone()).chain(numbered);
            // The candidates do not end.
            let Some(free) = candidates.find(|name| !taken.contains(name)) else { continue };
            taken.insert(free.clone());
            found.for_client.insert(free.clone(), name.to_owned());
            found.for_model.insert(name.to_owned(), free);
        }
        found
    }

    /// The conversation as the model reads it, and the names that were changed for it.
    pub(super) fn applied(conversation: &Conversation) -> Option<(Conversation, ToolNames)> {
        let names = || conversation.tools.functions.iter().filter_map(name_of);
        let called = conversation.messages.iter().filter_map(|message| message.tool_calls.as_ref());
        let called = called.filter_map(Value::as_array).flatten().filter_map(name_of);
        if names().chain(called).all(is_plain) {
            return None;
        }
        let found = ToolNames::of(names());
        let mut changed = conversation.clone();
        changed.tools.functions.iter_mut().for_each(|tool| found.rename(tool));
        changed.tools.strict.iter_mut().for_each(|name| *name = found.model_name(name));
        if let ToolChoice::Named(name) = &mut changed.tool_choice {
            *name = found.model_name(name);
        }
        for message in &mut changed.messages {
            let calls = message.tool_calls.as_mut().and_then(Value::as_array_mut);
            calls.into_iter().flatten().for_each(|call| found.rename(call));
            if message.role == "tool"
                && let Some(Value::String(name)) = &mut message.name
            {
                *name = found.model_name(name);
            }
        }
        Some((changed, found))
    }

    /// A name for the model. Calls of the history may name tools that are not there any more.
    fn model_name(&self, name: &str) -> String {
        self.for_model.get(name).cloned().unwrap_or_else(|| plain(name))
    }

    /// Renames a tool or a call of one, both of which have a `function` with a name.
    fn rename(&self, value: &mut Value) {
        if let Some(Value::String(name)) = value.pointer_mut("/function/name")
            && !is_plain(name)
        {
            *name = self.model_name(name);
        }
    }

    /// Gives calls the client's names.
    pub(super) fn restore(&self, deltas: &mut [Delta]) {
        for delta in deltas {
            if let Delta::Call { name } = delta
                && let Some(own) = self.for_client.get(name)
            {
                own.clone_into(name);
            }
        }
    }
}

fn name_of(value: &Value) -> Option<&str> {
    value.pointer("/function/name")?.as_str()
}

fn is_plain(name: &str) -> bool {
    name.chars().all(is_plain_char)
}

fn is_plain_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

fn plain(name: &str) -> String {
    name.chars().map(|c| if is_plain_char(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        let found = ToolNames::of(all.iter().copied());
        all.iter().map(|name| found.model_name(name)).collect()
    }

    #[test]
    fn names_become_ones_that_models_can_write() {
        let long = "x".repeat(128);
        let given = ["github:repos/list", "mcp.files.read", "a b", "get_weather", "天气", &long];
        let want = ["github_repos_list", "mcp_files_read", "a_b", "get_weather", "天气", &long];
        assert_eq!(names(&given), want);
    }

    #[test]
    fn names_that_become_equal_are_distinguished() {
        assert_eq!(names(&["a:b", "a/b", "a_b", "a.b_2"]), ["a_b_2", "a_b_3", "a_b", "a_b_2_2"]);
        // A tool that comes last changes no other's name, unless it has that name itself.
        assert_eq!(names(&["a:b", "a/b", "c"])[..2], names(&["a:b", "a/b"])[..]);
    }

    #[test]
    fn calls_come_back_under_the_clients_names() {
        let found = ToolNames::of(["a:b", "a/b", "plain"].into_iter());
        let call = |name: &str| Delta::Call { name: name.to_owned() };
        let mut deltas = [call("a_b"), call("a_b_2"), call("plain"), call("other")];
        found.restore(&mut deltas);
        assert_eq!(deltas, [call("a:b"), call("a/b"), call("plain"), call("other")]);
    }
}
