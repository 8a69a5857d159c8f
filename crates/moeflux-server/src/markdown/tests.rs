//! Whole texts: what becomes of their markup, and what hostile ones take.

use std::time::Instant;

use moeflux_core::SplitMix64;

use super::*;

fn html(text: &str) -> String {
    render(text, Budget::new()).finished.concat()
}

#[test]
fn markdown_becomes_html() {
    for (text, want) in [
        ("# Title", "<h3>Title</h3>"),
        (
            "*a* **b** ~~c~~ `<d>`",
            "<p><em>a</em> <strong>b</strong> <del>c</del> <code>&lt;d&gt;</code></p>",
        ),
        ("- a\n- b", "<ul>\n<li>a</li>\n<li>b</li>\n</ul>"),
        ("3. a", "<ol start=\"3\">\n<li>a</li>\n</ol>"),
        ("a  \nb", "<p>a<br>\nb</p>"),
        ("---", "<hr>"),
        ("H<sub>2</sub>O<br>b", "<p>H<sub>2</sub>O<br>b</p>"),
    ] {
        assert_eq!(html(text), want, "{text:?}");
    }
    let list = html("- [ ] todo\n- [x] done");
    assert!(
        list.contains("<span class=\"box\">☐</span> todo") && list.contains("box done"),
        "{list}"
    );
    let note = html("a[^1]\n\n[^1]: said <b");
    assert!(
        note.contains("<sup class=\"note\">1</sup>") && note.contains("class=\"footnote\""),
        "{note}"
    );
    let code = html("```rust\nlet x = 1 < 2;\n```");
    assert!(code.contains("<div class=\"code-head\"><span>rust</span></div>"), "{code}");
    assert!(code.contains("<span class=\"k\">let</span> x") && !code.contains("style"), "{code}");
    let table = html("| a | b |\n|---|--:|\n| `1` | 2 |");
    assert!(table.starts_with("<div class=\"table\"><table><thead><tr><th>a</th>"), "{table}");
    assert!(table.contains("<td class=\"right\">2</td>"), "{table}");
}

#[test]
fn formulas_become_mathml() {
    for text in ["so $a^2$ is", r"so \(a^2\) is", "$$\na\n- b\n$$", "\\[\na\n\n= b\n\\]", "- $$x$$"]
    {
        let html = html(text);
        assert!(
            html.contains("<math") && html.contains("<mi>a</mi>") | html.contains("<mi>x</mi>"),
            "{html}"
        );
    }
    assert!(html("$$x$$").contains("display=\"block\""));
    for text in ["from $5 to $6", "$5/$10", "`$a$`", "echo $HOME and $PATH"] {
        assert!(!html(text).contains("<math"), "{text}");
    }
    assert!(html(r"$\nosuch{1}$").contains("<code class=\"tex\">"));
}

#[test]
fn links_lead_to_the_web_only() {
    let link = html("[a](https://example.com/x \"t\")");
    assert!(
        link.contains("href=\"https://example.com/x\"")
            && link.contains("rel=\"noopener noreferrer\""),
        "{link}"
    );
    assert!(link.contains("target=\"_blank\""), "{link}");
    assert!(
        html("see https://example.com/a_b_c.").contains("<a href=\"https://example.com/a_b_c\"")
    );
    assert!(
        html("![alt](https://example.com/x.png)").contains("href=\"https://example.com/x.png\"")
    );
    for text in [
        "[a](javascript:alert(1))",
        "[a](JaVaScRiPt:alert(1))",
        "[a](data:text/html,x)",
        "[a](/page)",
        "[a](vbscript:x)",
        "[a](#b)",
        "[a](&#106;avascript:alert(1))",
        "[a](\tjavascript:alert(1))",
        "![a](data:image/svg+xml;base64,x)",
        "<javascript:alert(1)>",
        "[a]: javascript:x\n\n[a]",
        "[a](file:///etc/passwd)",
        "[a](//example.com)",
    ] {
        assert!(!html(text).contains("href"), "{text}: {}", html(text));
    }
}

/// Elements and attributes that no text may bring in.
fn assert_harmless(html: &str, text: &str) {
    let lower = html.to_ascii_lowercase();
    for tag in [
        "<script",
        "<img",
        "<svg",
        "<style",
        "<form",
        "<meta",
        "<base",
        "<iframe",
        "<object",
        "<embed",
        "<link",
        "<input",
        "<button",
        "<video",
        "<audio",
        "<annotation",
        "<maction",
        "<template",
        "<textarea",
        "<title",
        "<details",
        "<dialog",
        "<!--",
        "<html",
        "<body",
    ] {
        assert!(!lower.contains(tag), "{tag} of {text:?}: {html}");
    }
    for tag in lower.split('<').skip(1).map(|tag| tag.split('>').next().unwrap_or_default()) {
        let address = tag.split("href=\"").nth(1);
        let is_web = |address: &str| {
            ["http://", "https://", "mailto:"].iter().any(|scheme| address.starts_with(scheme))
        };
        assert!(address.is_none_or(is_web), "{tag} of {text:?}");
        // Outside of the attributes' values.
        let names: String = tag.split('"').step_by(2).collect();
        for attribute in [" on", " style=", " id=", " src=", " xlink", " name=", " action"] {
            assert!(!names.contains(attribute), "{attribute} of {text:?}: {html}");
        }
    }
}

const INJECTIONS: &[&str] = &[
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a <img src=x onerror=alert(1)> b",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<math><annotation-xml encoding='text/html'><script>alert(1)</script></annotation-xml></math>",
    "<math href=javascript:alert(1)>x</math>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "<style>body{display:none}</style>",
    "<form action=https://example.com><button>x</button></form>",
    "<meta http-equiv=refresh content=0>",
    "<base href=https://example.com>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<b onclick=alert(1)>x</b>",
    "<sub\nonclick=alert(1)>x</sub>",
    "<br/onload=alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "```\"><script>alert(1)</script>\ncode </code></pre><script>alert(1)</script>\n```",
    "```<img src=x onerror=alert(1)>\nx\n```",
    "`</code><script>alert(1)</script>`",
    "| <script>alert(1)</script> |\n|---|\n| <img src=x onerror=alert(1)> |",
    "$\\text{<img src=x onerror=alert(1)>}$",
    "$\\href{javascript:alert(1)}{x}$",
    "$$</math><script>alert(1)</script>$$",
    "$\\nosuch{<script>alert(1)</script>}$",
    "$\\color{red;background:url(x)}x$",
    "[x](https://example.com\"onmouseover=\"alert(1))",
    "[x](<https://example.com\" onmouseover=\"alert(1)>)",
    "https://example.com/\"onmouseover=alert(1)",
    "[x](https://example.com 'a\" onmouseover=\"alert(1)')",
    "![\" onerror=\"alert(1)](https://example.com/x)",
    "[^<script>]\n\n[^<script>]: <script>alert(1)</script>",
    "# <script>alert(1)</script> {#id onclick=alert(1)}",
    "<!--><script>alert(1)</script>-->",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<?php echo '<script>alert(1)</script>' ?>",
    "<!DOCTYPE html><body onload=alert(1)>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<details open ontoggle=alert(1)><summary>x</summary></details>",
    "> <script>\n> alert(1)\n> </script>",
    "- <img src=x\n  onerror=alert(1)>",
    "</p></div><script>alert(1)</script>",
    "<scr<script>ipt>alert(1)</scr</script>ipt>",
    "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\">",
    "<div style=\"position:fixed\" id=send name=body>x</div>",
];

#[test]
fn injected_markup_stays_text() {
    for text in INJECTIONS {
        assert_harmless(&html(text), text);
        for (end, _) in text.char_indices() {
            let part = &text[..end];
            let rendered = render_unfinished(part, Budget::new());
            assert_harmless(&(rendered.finished.concat() + &rendered.tail), part);
        }
    }
    assert!(
        html("a <img src=x onerror=alert(1)> b").contains("&lt;img src=x onerror=alert(1)&gt;")
    );
    assert!(html("<details>x</details>").contains("&lt;details&gt;"));
}

/// Texts made of pieces of syntax in any order.
#[test]
fn no_mixture_of_pieces_does_harm() {
    const PIECES: &[&str] = &[
        "**",
        "*",
        "_",
        "`",
        "```",
        "\n```\n",
        "~~~",
        "~~",
        "$",
        "$$",
        "\\(",
        "\\)",
        "\\[",
        "\\]",
        "\\",
        "|",
        "\n|---|\n",
        "\n",
        "\n\n",
        "- ",
        "1. ",
        "> ",
        "#",
        "[",
        "](",
        ")",
        "![",
        "[^1]",
        "[^1]: ",
        "<b>",
        "</b>",
        "<script>",
        "<img src=x onerror=y>",
        "<!--",
        "-->",
        "<br>",
        "&amp;",
        "https://a.example/",
        "javascript:",
        "\"",
        "'",
        "<",
        ">",
        "    ",
        "\t",
        "é",
        "😀",
        "\u{0}",
        "\\frac{",
        "}",
        "{",
        "^",
        "\\begin{align}",
        "\\end{align}",
        "a",
        "- [x] ",
        "\r\n",
        "\u{200f}",
    ];
    let mut random = SplitMix64::new(1);
    for _ in 0..3_000 {
        let n_pieces = random.below(24) + 1;
        let text: String = (0..n_pieces).map(|_| PIECES[random.below(PIECES.len())]).collect();
        assert_harmless(&html(&text), &text);
        let rendered = render_unfinished(&text, Budget::new());
        assert!(text.is_char_boundary(rendered.tail_start), "{text:?}");
        assert_harmless(&(rendered.finished.concat() + &rendered.tail), &text);
    }
}

/// Feeds a text in pieces as the page does; returns the HTML and the bytes that were rendered.
fn streamed(text: &str, piece: usize) -> (String, usize) {
    let (mut html, mut tail, mut start, mut n_rendered) = (String::new(), String::new(), 0, 0);
    let mut end = 0;
    while end < text.len() {
        end = (end + piece).min(text.len());
        while !text.is_char_boundary(end) {
            end += 1;
        }
        let rendered = render_unfinished(&text[start..end], Budget::new());
        n_rendered += end - start;
        html.push_str(&rendered.finished.concat());
        tail = rendered.tail;
        start += rendered.tail_start;
    }
    (html + &tail, n_rendered)
}

const ANSWER: &str = "Here is **how**.\n\n## Steps\n\n1. First, *open* it\n2. Then read\n\n   more\n\n\
    ```rust\nfn main() {\n    let x = \"a\n\nb\";\n}\n```\n\n| a | b |\n|---|--:|\n| 1 | `2` |\n\n\
    Inline $E = mc^2$ and \\( a^2 \\):\n\n$$\n\\int_0^1 x\n= 1\n$$\n\n\\[\na - b\n\\]\n\n> said\n> more\n\n\
    - [x] done\n- [ ] todo\n    - deep\n\n***\n\nThe end, at https://example.com/x.";

#[test]
fn pieces_make_what_the_whole_makes() {
    let whole = html(ANSWER);
    for piece in [1, 2, 3, 7, 50] {
        let streamed = streamed(ANSWER, piece).0;
        let n_same = streamed.bytes().zip(whole.bytes()).take_while(|(a, b)| a == b).count();
        let rest = whole.get(n_same.saturating_sub(30)..);
        assert_eq!(streamed.get(n_same.saturating_sub(30)..), rest, "pieces of {piece}");
    }
    assert_eq!(streamed(&ANSWER.replace('\n', "\r\n"), 3).0, html(&ANSWER.replace('\n', "\r\n")));
}

#[test]
fn a_long_answer_is_not_rendered_again_and_again() {
    let text = format!("{ANSWER}\n\n").repeat(100_000 / ANSWER.len());
    let (_, n_rendered) = streamed(&text, 100);
    assert!(n_rendered < 4 * text.len(), "{n_rendered} of {}", text.len());
}

#[test]
fn unfinished_parts_are_shown_as_what_they_will_be() {
    let tail = |text| render_unfinished(text, Budget::new()).tail;
    assert!(tail("a\n\n```rust\nlet x").contains("class=\"code\""));
    assert!(tail("| a | b |\n|--").contains("<table>"));
    assert_eq!(tail("some **bold"), "<p>some <strong>bold</strong></p>");
    assert_eq!(tail("text\n-"), "<p>text</p>");
    assert_eq!(tail("$$\n\\frac{1}{"), "<p><code>\\frac{1}{</code></p>");
    assert_eq!(tail("so \\(a + *b* `"), "<p>so <code>a + *b* `</code></p>");
    let open = render_unfinished("é\n\n```py\nx = 1", Budget::new());
    assert!(open.is_code_open && open.finished == ["<p>é</p>"] && open.tail_start == 4);
    assert!(!render_unfinished("```py\nx\n```", Budget::new()).is_code_open);
}

#[test]
fn hostile_texts_take_little_time() {
    const N: usize = 60_000;
    let texts = [
        "[".repeat(N),
        ">".repeat(N),
        "> ".repeat(N),
        "- ".repeat(N),
        "*".repeat(N),
        "*a ".repeat(N / 3),
        "`a``".repeat(N / 4),
        "$".repeat(N),
        "$a ".repeat(N / 3),
        "\\(".repeat(N / 2),
        "\\[".repeat(N / 2),
        "![](".repeat(N / 4),
        "[a](".repeat(N / 4),
        "<".repeat(N),
        "<b>".repeat(N / 3),
        "<!--".repeat(N / 4),
        "a\n".repeat(N / 2),
        "|".repeat(N),
        format!("{}\n{}\n", "|a".repeat(1_000), "|-".repeat(1_000)).repeat(20),
        "[^1]".repeat(N / 4),
        "1. ".repeat(N / 3),
        "~~".repeat(N / 2),
        "_a_".repeat(N / 3),
        "&".repeat(N),
        "https://".repeat(N / 8),
        "http".repeat(N / 4),
        "**a ".repeat(N / 4),
        "\\begin{align}".repeat(N / 13),
        "$$a\n\n".repeat(N / 5),
        "```\n".repeat(N / 4),
        "[a]: b\n".repeat(N / 7),
        "\u{0}".repeat(N),
        (0..1_000).map(|n| format!("{}- a\n", " ".repeat(n % 200))).collect(),
        (0..300).map(|n| format!("{}a\n", ">".repeat(n))).collect(),
        format!("```rust\n{}\n```", "((((\"".repeat(N / 5)),
        format!("```js\n{}\n```", "/(a*)*b".repeat(100).repeat(20)),
        format!("```cpp\n{}\n```", format!("{}\n", "<a<".repeat(300)).repeat(60)),
        format!("```md\n{}\n```", format!("{}\n", "[*_`".repeat(200)).repeat(60)),
        format!("```python\n{}\n```", format!("{}\n", "f'{(".repeat(200)).repeat(60)),
        format!("```perl\n{}\n```", format!("{}\n", "s{a}{b}".repeat(100)).repeat(60)),
        "$\\frac{a}{b}$ ".repeat(N / 14),
        (0..N / 12).map(|n| format!("```x{n}\na\n```\n")).collect(),
        "```rs\na\n```\n```py\na\n```\n```js\na\n```\n```c\na\n```\n```go\na\n```\n".repeat(1_000),
        format!("${}$", "\\sqrt".repeat(1_000)),
    ];
    for text in texts {
        let shown: String = text.chars().take(12).collect();
        for render in [render, render_unfinished] {
            let start = Instant::now();
            let rendered = render(&text, Budget::new());
            let took = start.elapsed();
            // Milliseconds, and at most the budget; the limit leaves room for busy machines.
            assert!(took.as_secs() < 10, "{shown:?}: {took:?}");
            let depth = depth(&(rendered.finished.concat() + &rendered.tail));
            assert!(depth < 120, "{shown:?}: depth {depth}");
        }
    }
}

fn depth(html: &str) -> i32 {
    let (mut depth, mut deepest) = (0, 0);
    for (at, _) in html.match_indices('<') {
        let is_void = ["<br", "<hr", "<wbr"].iter().any(|void| html[at..].starts_with(void));
        depth += if html[at..].starts_with("</") { -1 } else { i32::from(!is_void) };
        deepest = deepest.max(depth);
    }
    deepest
}

#[test]
fn texts_that_are_too_long_stay_as_they_are() {
    let list = "- a\n".repeat(100_000);
    let rendered = render(&format!("before\n\n{list}\n# after"), Budget::new());
    assert_eq!([&rendered.finished[0], &rendered.finished[2]], ["<p>before</p>", "<h3>after</h3>"]);
    assert!(rendered.finished[1].starts_with("<p class=\"raw\">- a\n- a\n"));
    let text = "**<b>** ".repeat(200_000);
    let rendered = render(&text, Budget::new());
    assert!(rendered.finished[0].starts_with("<p class=\"raw\">**&lt;b&gt;** "));
    assert!(render_unfinished(&text, Budget::new()).tail.starts_with("<p class=\"raw\">"));
}
