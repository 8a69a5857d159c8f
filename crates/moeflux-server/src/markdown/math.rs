//! LaTeX formulas as MathML.

use std::fmt::Write;

use moeflux_text::catch_panic;
use pulldown_latex::config::DisplayMode;
use pulldown_latex::{Event, Parser, RenderConfig, Storage, push_mathml};

use crate::markdown::budget::{Budget, escaped};

/// Longer formulas are shown as their source.
const MAX_BYTES: usize = 8 << 10;

/// More events come only of macros that expand to macros.
const MAX_EVENTS: usize = 20_000;

/// Groups in groups at most.
const MAX_DEPTH: usize = 40;

/// Commands in a row, each an argument of the one before at worst: the parser calls itself.
const MAX_CHAIN: usize = 100;

/// Commands that the library does not know, and what stands for them.
const COMMANDS: &[(&str, &str)] = &[
    ("bm", "\\boldsymbol"),
    ("boxed", "\\textcolor{#010203}"),
    ("fbox", "\\text"),
    ("label", "\\phantom"),
    ("mbox", "\\text"),
    ("nonumber", "{}"),
    ("notag", "{}"),
    ("tag", "\\qquad\\text"),
];

/// What stands for a frame: a colour that no formula has.
const FRAME: [u8; 3] = [1, 2, 3];

/// A formula as MathML, or as its source where it is no LaTeX that the library knows.
pub(super) fn render(tex: &str, is_block: bool, budget: Budget) -> String {
    let tex = tex.trim();
    let mode = if is_block { DisplayMode::Block } else { DisplayMode::Inline };
    if budget.is_spent() {
        source(tex, is_block)
    } else {
        mathml(tex, mode)
            .or_else(|| mathml(&in_lines(tex)?, mode))
            .unwrap_or_else(|| source(tex, is_block))
    }
}

/// A formula of several lines without the environment that these need.
fn in_lines(tex: &str) -> Option<String> {
    let has_lines = tex.contains("\\\\") || tex.contains('&');
    has_lines.then(|| format!("\\begin{{aligned}}{tex}\\end{{aligned}}"))
}

fn mathml(tex: &str, display_mode: DisplayMode) -> Option<String> {
    if tex.is_empty() || tex.len() > MAX_BYTES || !is_shallow(tex) {
        return None;
    }
    let render = || {
        let storage = Storage::new();
        let tex = with_known_commands(tex);
        let parser = Parser::new(&tex, &storage).take(MAX_EVENTS + 1);
        let events: Vec<Event<'_>> = parser.collect::<Result<_, _>>().ok()?;
        if events.len() > MAX_EVENTS {
            return None;
        }
        let mut html = String::new();
        let config = RenderConfig { display_mode, ..RenderConfig::default() };
        let events = events.into_iter().map(Ok::<_, std::fmt::Error>);
        push_mathml(&mut html, events, config).ok()?;
        // The library writes this element where it met an error of its own.
        (!html.contains("<merror")).then(|| with_colours(&with_spaces_before(&html)))
    };
    catch_panic(render).ok().flatten()
}

/// Whether neither the parser nor a browser nests too deep.
fn is_shallow(tex: &str) -> bool {
    let (mut depth, mut chain) = (0usize, 0usize);
    let mut rest = tex;
    while let Some(char) = rest.chars().next() {
        rest = &rest[char.len_utf8()..];
        match char {
            '\\' => {
                let letters = rest.find(|char: char| !char.is_ascii_alphabetic());
                let name = &rest[..letters.unwrap_or(rest.len())];
                let is_opening = matches!(name, "left" | "begin");
                let is_closing = matches!(name, "right" | "end");
                depth = (depth + usize::from(is_opening)).saturating_sub(usize::from(is_closing));
                chain += 1;
                let symbol = rest.chars().next().map_or(0, char::len_utf8);
                rest = &rest[name.len().max(symbol)..];
            }
            '{' => (depth, chain) = (depth + 1, 0),
            '}' => (depth, chain) = (depth.saturating_sub(1), 0),
            _ if char.is_whitespace() => {}
            _ => chain = 0,
        }
        if depth > MAX_DEPTH || chain > MAX_CHAIN {
            return false;
        }
    }
    true
}

fn with_known_commands(tex: &str) -> String {
    let mut out = String::with_capacity(tex.len());
    let mut rest = tex;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let end = after.find(|char: char| !char.is_ascii_alphabetic()).unwrap_or(after.len());
        let known = COMMANDS.iter().find(|(name, _)| *name == &after[..end]);
        if let Some((_, command)) = known {
            out.push_str(command);
            rest = &after[end..];
            continue;
        }
        out.push('\\');
        // A second backslash begins no command.
        let len = end.max(after.chars().next().map_or(0, char::len_utf8));
        out.push_str(&after[..len]);
        rest = &after[len..];
    }
    out + rest
}

/// The library writes the space before a function's name into the script of that name, which has
/// an element too many then.
fn with_spaces_before(html: &str) -> String {
    const SCRIPTS: [&str; 6] = ["msub", "msup", "msubsup", "munder", "mover", "munderover"];
    let mut out = String::with_capacity(html.len());
    let mut rest = html;
    while let Some(at) = rest.find("><mspace") {
        let (before, after) = rest.split_at(at + 1);
        out.push_str(before);
        let len = after.find("/>").map_or(after.len(), |end| end + 2);
        let (space, after) = after.split_at(len);
        let start = out.rfind('<').unwrap_or(0);
        let name = out[start..].trim_start_matches('<').split([' ', '>']).next();
        if name.is_some_and(|name| SCRIPTS.contains(&name)) {
            out.insert_str(start, space)
        } else {
            out.push_str(space)
        }
        rest = after;
    }
    out + rest
}

/// Writes colours as attributes: a page's policy does not allow styles in its markup.
fn with_colours(html: &str) -> String {
    const STYLE: &str = "style=\"color: rgb(";
    let mut out = String::with_capacity(html.len());
    let mut rest = html;
    while let Some((before, after)) = rest.split_once(STYLE) {
        out.push_str(before);
        rest = after;
        let Some((colour, after)) = after.split_once(')') else { break };
        let parts: Vec<u8> = colour.split(' ').filter_map(|part| part.parse().ok()).collect();
        if let [red, green, blue] = parts[..] {
            // Writing to a string does not fail.
            let _ = if parts == FRAME {
                write!(out, "class=\"boxed")
            } else {
                write!(out, "mathcolor=\"#{red:02x}{green:02x}{blue:02x}")
            };
            // Other styles may follow: their text ends with the same quote.
            rest = &after[after.find('"').unwrap_or(after.len())..];
        }
    }
    out.push_str(rest);
    out
}

fn source(tex: &str, is_block: bool) -> String {
    let class = if is_block { "tex block" } else { "tex" };
    format!("<code class=\"{class}\">{}</code>", escaped(tex))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inline(tex: &str) -> String {
        render(tex, false, Budget::new())
    }

    #[test]
    fn formulas_become_mathml() {
        let html = inline(r"E = mc^2");
        assert!(html.starts_with("<math") && html.contains("<msup>"), "{html}");
        for tex in [
            r"\int_0^1 x\,dx = \frac{1}{2}",
            r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}",
            r"\begin{aligned} a &= b \\ &= c \end{aligned}",
            r"f(x) = \begin{cases} 1 & x > 0 \\ 0 & \text{otherwise} \end{cases}",
            r"\sum_{i=1}^{n} i = \frac{n(n+1)}{2}",
            r"\mathbb{R}^n \to \mathcal{L}(\vec{x}, \hat{y})",
            r"\left( \frac{a}{b} \right)^{\!2} \le \sqrt[3]{x}",
            r"\boxed{x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}}",
            r"\operatorname{softmax}(z)_i = \frac{e^{z_i}}{\sum_j e^{z_j}}",
            r"a = b \tag{1} \notag \\ \bm{x}",
            r"\underbrace{a + b}_{c} \overline{z} \lim_{x \to 0} \frac{\sin x}{x}",
            r"\alpha\beta\gamma\delta\epsilon\,\nabla\cdot\mathbf{E}",
        ] {
            assert!(inline(tex).starts_with("<math"), "{tex}");
        }
        assert!(
            inline(r"\boxed{x}").contains("<mrow class=\"boxed\">"),
            "{}",
            inline(r"\boxed{x}")
        );
        assert!(inline(r"\color{red} x").contains("mathcolor=\"#"), "{}", inline(r"\color{red} x"));
    }

    #[test]
    fn what_is_no_latex_is_shown_as_it_is() {
        for tex in
            [r"\frac{1}{", r"\nosuchcommand{<b>}", "}", r"\begin{a}", "x^^2", "{", r"\left(", ""]
        {
            let html = inline(tex);
            assert!(html.starts_with("<code class=\"tex\">") && !html.contains("<b>"), "{html}");
        }
    }

    #[test]
    fn nothing_overflows_the_stack_or_takes_long() {
        let start = std::time::Instant::now();
        for piece in [
            "{",
            r"\sqrt",
            r"\frac",
            r"\left(",
            "^",
            "x^",
            "x_{",
            r"\b",
            r"\text",
            "$",
            "&",
            r"\\",
            r"\begin{matrix}",
            r"\begin{array}{c|",
            r"\def\a{\a\a}\a",
            r"\mathbf",
            "'",
            r"\not",
            r"\hat",
            "[",
            r"\sqrt[",
            r"\color",
            r"\overbrace{",
            r"\limits",
            "\u{301}",
            "-{",
            "é",
            r"\href{javascript:alert(1)}{x}",
            r"\text{<script>}",
            r"\operatorname*",
            r"\stackrel",
        ] {
            for n in [1, 30, 90, 2_000] {
                let html = inline(&piece.repeat(n));
                assert!(!html.contains("<script") && !html.contains("href="), "{piece}");
                inline(&format!("{}x{}", piece.repeat(n), "}".repeat(n)));
            }
        }
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
