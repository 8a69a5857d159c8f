//! Members of an object, or arguments, in any order, as rules of a grammar.
//!
//! Each comes at most once as far as a grammar of a bounded size can say so.

use super::rules::{Rules, regex_char};
use crate::Parameters;

/// Members of an object that are counted, for a grammar with few tools. Each doubles the rules.
const MAX_COUNTED: usize = 6;
/// Members of a nested object that are counted.
const MAX_COUNTED_NESTED: usize = 3;
/// Levels of nested objects whose members may come in any order.
pub(super) const MAX_NESTED: usize = 2;
/// Rules that the members of all tools may make.
pub(super) const MAX_RULES: usize = 2048;

/// Members of an object, in any order.
#[derive(Default)]
pub(super) struct Members {
    /// Rules of those that are allowed once.
    pub(super) counted: Vec<String>,
    /// How many of the first of them must be there.
    pub(super) n_required: usize,
    /// Rules of those that may be repeated.
    pub(super) free: Vec<String>,
    /// Between two members.
    pub(super) separator: &'static str,
}

/// How deep an object is, and how many of its members are counted.
#[derive(Clone, Copy)]
pub(super) struct Level {
    pub(super) depth: usize,
    max_counted: usize,
}

impl Level {
    /// That of the arguments of one of `n_tools`.
    pub(super) fn of_arguments(n_tools: usize) -> Level {
        let rules_each = MAX_RULES / n_tools.max(1);
        let max_counted = rules_each.checked_ilog2().unwrap_or(0) as usize;
        Level { depth: 0, max_counted: max_counted.min(MAX_COUNTED) }
    }

    pub(super) fn inner(self) -> Level {
        Level {
            depth: self.depth + 1,
            max_counted: self.max_counted.saturating_sub(1).min(MAX_COUNTED_NESTED),
        }
    }
}

impl Members {
    /// Members in any order: a rule for each set of members that were given already.
    pub(super) fn unordered(mut self, rules: &mut Rules<'_>, level: Level) -> String {
        let n_counted = self.counted.len().min(level.max_counted);
        let free = [self.counted.split_off(n_counted), self.free].concat();
        let free = (!free.is_empty()).then(|| rules.rule(&free.join(" | ")));
        let n_required = self.n_required.min(n_counted);
        let (all_required, n_sets) = ((1_usize << n_required) - 1, 1_usize << n_counted);
        let separator = self.separator;
        let mut after = vec![String::new(); n_sets];
        for given in (0..n_sets).rev() {
            let mut ways = next_members(&self.counted, &after, given, separator);
            if given & all_required == all_required {
                ways.push(String::from("\"\""));
            }
            let repeated =
                free.as_ref().map_or(String::new(), |free| format!("({separator} {free})* "));
            after[given] = rules.rule(&format!("{repeated}({})", ways.join(" | ")));
        }
        if separator.is_empty() {
            return after.swap_remove(0);
        }
        // Nothing stands before the first member.
        let mut first = next_members(&self.counted, &after, 0, "");
        first.extend(free.iter().map(|member| format!("{member} {}", after[0])));
        first.extend((n_required == 0).then(|| String::from("\"\"")));
        rules.rule(&first.join(" | "))
    }
}

/// Each member that is not yet `given`, and what may follow it.
fn next_members(
    members: &[String],
    after: &[String],
    given: usize,
    separator: &str,
) -> Vec<String> {
    let missing = members.iter().enumerate().filter(|(i, _)| given >> i & 1 == 0);
    missing.map(|(i, member)| format!("{separator} {member} {}", after[given | 1 << i])).collect()
}

/// Excludes the names of known arguments from a terminal.
pub(super) fn names_but(parameters: &Parameters, written: impl Fn(&str) -> String) -> String {
    let names = parameters.properties.iter().map(|(name, _)| written(name));
    let names: Vec<String> = names.map(|name| name.chars().map(regex_char).collect()).collect();
    if names.is_empty() { String::new() } else { format!(" & ~/\"?({})\"?/", names.join("|")) }
}
