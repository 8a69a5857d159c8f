//! Highlighted code: spans with a class for each kind of token.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use syntect::easy::ScopeRegionIterator;
use syntect::parsing::{ParseState, Scope, ScopeStack, SyntaxReference, SyntaxSet};
use syntect::util::LinesWithEndings;

use crate::markdown::budget::{Budget, escaped};

/// What follows this many bytes of a block is not highlighted.
const MAX_BYTES: usize = 64 << 10;

/// Nor are longer lines: some grammars take quadratic time for a line.
const MAX_LINE_BYTES: usize = 1_000;

/// Languages whose grammars are kept unpacked: each takes some megabytes.
const MAX_LANGUAGES: usize = 6;

/// The grammars: an index at first, each is unpacked when code needs it.
#[derive(Debug, Default)]
struct Grammars {
    syntaxes: Option<Arc<SyntaxSet>>,
    /// Names of those that are unpacked.
    used: HashSet<String>,
}

impl Grammars {
    fn find(&mut self, name: &str) -> Option<(Arc<SyntaxSet>, SyntaxReference)> {
        let new = || Arc::new(two_face::syntax::extra_newlines());
        let syntaxes = Arc::clone(self.syntaxes.get_or_insert_with(new));
        let syntax = syntaxes.find_syntax_by_token(name)?.clone();
        if !self.used.contains(&syntax.name) && self.used.len() >= MAX_LANGUAGES {
            // All become an index again.
            *self = Grammars::default();
            return self.find(name);
        }
        self.used.insert(syntax.name.clone());
        Some((syntaxes, syntax))
    }
}

static GRAMMARS: LazyLock<Mutex<Grammars>> = LazyLock::new(Mutex::default);

/// Names of languages that the grammars do not know.
const ALIASES: &[(&str, &str)] = &[
    ("c++", "cpp"),
    ("console", "bash"),
    ("csharp", "cs"),
    ("golang", "go"),
    ("javascript", "js"),
    ("json5", "json"),
    ("jsonc", "json"),
    ("jsx", "js"),
    ("kt", "kotlin"),
    ("mjs", "js"),
    ("objective-c", "objc"),
    ("py3", "python"),
    ("python3", "python"),
    ("sh-session", "bash"),
    ("shell", "bash"),
    ("shellscript", "bash"),
    ("ts", "typescript"),
    ("zsh", "bash"),
];

/// Classes of scopes: of the innermost scope on this list, the first that fits.
const CLASSES: &[(&str, &str)] = &[
    ("comment", "c"),
    ("constant.character.escape", "e"),
    ("constant.other.placeholder", "e"),
    ("string", "s"),
    ("constant", "n"),
    ("entity.name.function", "f"),
    ("support.function", "f"),
    ("variable.function", "f"),
    ("support.macro", "f"),
    ("entity.name.tag", "k"),
    ("entity.other.attribute-name", "a"),
    ("entity.name", "t"),
    ("support.type", "t"),
    ("support.class", "t"),
    ("storage", "k"),
    ("keyword.operator.word", "k"),
    ("keyword.operator", "o"),
    ("keyword", "k"),
    ("variable.language", "k"),
    ("variable.annotation", "a"),
    ("meta.annotation", "a"),
    ("meta.mapping.key", "a"),
    ("support.type.property-name", "a"),
    ("markup.inserted", "s"),
    ("markup.deleted", "d"),
    ("markup.heading", "k"),
    ("meta.diff", "c"),
];

static SCOPES: LazyLock<Vec<(Scope, &str)>> = LazyLock::new(|| {
    let scope = |(name, class): &(&str, &'static str)| Some((Scope::new(name).ok()?, *class));
    CLASSES.iter().filter_map(scope).collect()
});

/// The word of a fence's info string that names the language.
pub(super) fn language(info: &str) -> &str {
    let is_end = |char: char| char.is_whitespace() || ",{}:;".contains(char);
    let info = info.trim_start_matches(|char: char| is_end(char) || char == '.');
    &info[..info.find(is_end).unwrap_or(info.len())]
}

/// The grammar of a language, and the set that it is of.
fn grammar(language: &str) -> Option<(Arc<SyntaxSet>, SyntaxReference)> {
    let language = language.to_ascii_lowercase();
    let alias = ALIASES.iter().find(|(alias, _)| *alias == language);
    let name = alias.map_or(language.as_str(), |(_, name)| name);
    if name.is_empty() {
        return None;
    }
    let found = GRAMMARS.lock().unwrap_or_else(PoisonError::into_inner).find(name);
    found.filter(|(_, syntax)| syntax.name != "Plain Text")
}

/// Code as HTML, in the colours of its language as far as that is known and time is left.
pub(super) fn highlight(code: &str, language: &str, budget: Budget) -> String {
    let found = if budget.is_spent() { None } else { grammar(language) };
    let Some((syntaxes, syntax)) = found else { return escaped(code) };
    let mut highlighter = Highlighter::new(syntaxes, &syntax);
    let mut n_bytes = 0;
    for line in LinesWithEndings::from(code) {
        n_bytes += line.len();
        let is_plain = n_bytes > MAX_BYTES || line.len() > MAX_LINE_BYTES || budget.is_spent();
        if is_plain || highlighter.push(line).is_none() {
            highlighter.push_plain(line);
        }
    }
    highlighter.finish()
}

struct Highlighter {
    syntaxes: Arc<SyntaxSet>,
    state: ParseState,
    stack: ScopeStack,
    html: String,
    /// The class of the span that is open.
    class: Option<&'static str>,
}

impl Highlighter {
    fn new(syntaxes: Arc<SyntaxSet>, syntax: &SyntaxReference) -> Highlighter {
        Highlighter {
            syntaxes,
            state: ParseState::new(syntax),
            stack: ScopeStack::new(),
            html: String::new(),
            class: None,
        }
    }

    /// Adds a line; `None`, and nothing is added, where its grammar fails.
    fn push(&mut self, line: &str) -> Option<()> {
        let ops = self.state.parse_line(line, &self.syntaxes).ok()?;
        for (text, op) in ScopeRegionIterator::new(&ops, line) {
            self.stack.apply(op).ok()?;
            if !text.is_empty() {
                // Spaces need no colour, and take that of the text before them.
                let is_blank = text.trim().is_empty();
                self.append(text, if is_blank { self.class } else { class(&self.stack) });
            }
        }
        Some(())
    }

    fn push_plain(&mut self, line: &str) {
        self.append(line, None);
    }

    fn append(&mut self, text: &str, class: Option<&'static str>) {
        if class != self.class {
            if self.class.is_some() {
                self.html.push_str("</span>");
            }
            if let Some(class) = class {
                self.html.push_str("<span class=\"");
                self.html.push_str(class);
                self.html.push_str("\">");
            }
            self.class = class;
        }
        self.html.push_str(&escaped(text));
    }

    fn finish(mut self) -> String {
        self.append("", None);
        self.html
    }
}

fn class(stack: &ScopeStack) -> Option<&'static str> {
    stack.scopes.iter().rev().find_map(|scope| {
        let found = SCOPES.iter().find(|(prefix, _)| prefix.is_prefix_of(*scope));
        found.map(|(_, class)| *class)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_found_by_the_names_that_models_write() {
        let mut known = Vec::new();
        for name in [
            "rust",
            "rs",
            "python",
            "py",
            "python3",
            "js",
            "javascript",
            "jsx",
            "ts",
            "typescript",
            "tsx",
            "json",
            "jsonc",
            "yaml",
            "yml",
            "toml",
            "bash",
            "sh",
            "shell",
            "console",
            "zsh",
            "c",
            "cpp",
            "c++",
            "csharp",
            "cs",
            "java",
            "kotlin",
            "swift",
            "go",
            "golang",
            "html",
            "css",
            "scss",
            "xml",
            "sql",
            "dockerfile",
            "Makefile",
            "diff",
            "latex",
            "markdown",
            "ruby",
            "php",
            "perl",
            "lua",
            "r",
            "haskell",
            "scala",
            "nix",
            "zig",
            "vue",
            "svelte",
            "graphql",
            "elixir",
            "clojure",
            "ini",
            "cmake",
            "protobuf",
        ] {
            known.push((name, grammar(name).is_some()));
        }
        known.retain(|(_, is_known)| !is_known);
        assert!(known.is_empty(), "{known:?}");
        for name in ["", "text", "plaintext", "no-such-language"] {
            assert!(grammar(name).is_none(), "{name}");
        }
        assert_eq!(language("rust,ignore"), "rust");
        assert_eq!(language(" {.python #id}"), "python");
        assert_eq!(language("js title=\"a\""), "js");
    }

    #[test]
    fn tokens_get_classes() {
        let html = highlight("fn main() { let s = \"<a>\\n\"; } // 1\n", "rust", Budget::new());
        for part in [
            "<span class=\"k\">fn </span>",
            "<span class=\"f\">main</span>",
            "<span class=\"s\">&quot;&lt;a&gt;</span><span class=\"e\">\\n</span>",
            "<span class=\"c\">// 1\n</span>",
        ] {
            assert!(html.contains(part), "{part} in {html}");
        }
    }

    #[test]
    fn long_lines_and_long_code_stay_plain() {
        let line = format!("let x = \"{}\";\n", "<".repeat(MAX_LINE_BYTES));
        assert_eq!(highlight(&line, "rust", Budget::new()), escaped(&line));
        let code = "let x = 1;\n".repeat(20_000);
        let html = highlight(&code, "rust", Budget::new());
        assert!(html.contains("class=\"k\"") && html.ends_with("let x = 1;\nlet x = 1;\n"));
    }
}
