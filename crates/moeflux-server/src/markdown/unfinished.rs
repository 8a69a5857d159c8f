//! The end of a text that is still being written: marks that are open get closed, and what may
//! become anything is held back.

/// Marks that begin a block, or go on with one, where a line has nothing else.
const BLOCK_MARKS: &str = "`~#*-+=|:>$\\[]_ \t";

/// Completes a text that ends outside of code.
pub(super) fn complete(text: &mut String) {
    hold_marks(text);
    if complete_table(text) {
        return;
    }
    let start = scope_start(text);
    cut_link(text, start);
    close_marks(text, start);
}

/// Takes away the marks at the end of open code that may become its closing fence.
pub(super) fn hold_fence(text: &mut String) {
    let line_start = text.rfind('\n').map_or(0, |at| at + 1);
    let line = text[line_start..].trim();
    // The fence that opens the code has nothing before it that would be code.
    let is_first = line_start == 0 || !text[..line_start].contains(['`', '~']);
    if !is_first && !line.is_empty() && line.chars().all(|char| "`~".contains(char)) {
        text.truncate(line_start);
    }
}

/// A last line of nothing but marks would be a heading's underline, a rule or an empty item first.
fn hold_marks(text: &mut String) {
    let line_start = text.rfind('\n').map_or(0, |at| at + 1);
    let line = text[line_start..].trim();
    let number = line.trim_end_matches(['.', ')']);
    let is_number = number.len() < line.len() && number.bytes().all(|byte| byte.is_ascii_digit());
    let is_mark = line.chars().all(|char| BLOCK_MARKS.contains(char)) && line.len() < 80;
    // Rows of dashes are completed, and formulas end with dollars.
    let is_rule = line.starts_with('|') && line.len() > 1;
    let is_formula = line.len() > 1 && line.ends_with('$');
    if is_number || (is_mark && !is_rule && !is_formula) {
        text.truncate(line_start);
    }
}

/// Where the paragraph, item or cell begins that the text ends in.
fn scope_start(text: &str) -> usize {
    let paragraph = text.rfind("\n\n").map_or(0, |at| at + 2);
    let mut start = paragraph;
    for (at, _) in text[paragraph..].match_indices('\n') {
        let line_start = paragraph + at + 1;
        let line = text[line_start..].trim_start();
        let digits = line.trim_start_matches(|char: char| char.is_ascii_digit());
        let begins_item = line.starts_with(['-', '*', '+', '#', '>', '|'])
            || (digits.len() < line.len() && digits.starts_with(['.', ')']));
        if begins_item {
            start = line_start;
        }
    }
    start
}

/// Shows a table from its first row on: adds the row of dashes as far as it is missing.
fn complete_table(text: &mut String) -> bool {
    let start = text.rfind("\n\n").map_or(0, |at| at + 2);
    let block = &text[start..];
    let mut lines = block.lines();
    let Some(head) = lines.next().filter(|line| line.trim_start().starts_with('|')) else {
        return false;
    };
    let row = lines.next().unwrap_or_default();
    let is_rule = row.chars().all(|char| "|-: \t".contains(char));
    if !is_rule || lines.next().is_some() || head.trim().len() < 2 {
        return false;
    }
    let head = head.trim_end();
    let n_bars = head.match_indices('|').filter(|(at, _)| !head[..*at].ends_with('\\')).count();
    let n_cells = n_bars - usize::from(head.ends_with('|') && n_bars > 1);
    let n_given = row.matches('-').count().min(row.matches('|').count());
    if n_given > n_cells || (row.trim().ends_with('|') && n_given == n_cells) {
        return true;
    }
    let head_end = start + head.len();
    text.truncate(head_end);
    text.push('\n');
    text.push_str(&"|---".repeat(n_cells));
    text.push_str("|\n");
    true
}

/// Shows the label of a link whose address is not complete.
fn cut_link(text: &mut String, start: usize) {
    let Some(at) = text[start..].rfind("](").map(|at| start + at) else { return };
    if text[at..].contains([')', '\n']) {
        return;
    }
    text.truncate(at);
    if let Some(open) = text[start..].rfind('[') {
        let open = start + open;
        let is_image = text[..open].ends_with('!');
        text.replace_range(open - usize::from(is_image)..=open, "");
    }
}

/// Closes emphasis and code that are open where the text ends.
fn close_marks(text: &mut String, start: usize) {
    let open = open_marks(&text[start..]);
    // A mark with nothing after it yet.
    if let Some(mark) = open.last().filter(|mark| text.trim_end().ends_with(mark.as_str())) {
        let len = text.trim_end().len() - mark.len();
        text.truncate(len);
        return close_marks(text, start);
    }
    if open.is_empty() {
        return;
    }
    text.truncate(text.trim_end().len());
    for mark in open.iter().rev() {
        text.push_str(mark);
    }
}

fn open_marks(text: &str) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    let mut rest = text;
    let mut before = ' ';
    while let Some(char) = rest.chars().next() {
        let n = rest.chars().take_while(|other| *other == char).count();
        let run = &rest[..n * char.len_utf8()];
        let after = rest[run.len()..].chars().next();
        rest = &rest[run.len()..];
        match char {
            '`' => {
                // Nothing inside of code is a mark.
                let Some(end) = code_end(rest, n) else {
                    open.push(run.to_string());
                    return open;
                };
                rest = &rest[end..];
            }
            '\\' if n % 2 == 1 => rest = &rest[rest.chars().next().map_or(0, char::len_utf8)..],
            '*' | '_' | '~' => note_run(&mut open, run, before, after),
            _ => {}
        }
        before = char;
    }
    open
}

/// Bytes up to and with the run of `n` backquotes that ends code.
fn code_end(text: &str, n: usize) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = text[at..].find('`') {
        let start = at + found;
        let len = text[start..].bytes().take_while(|byte| *byte == b'`').count();
        if len == n {
            return Some(start + len);
        }
        at = start + len;
    }
    None
}

fn note_run(open: &mut Vec<String>, run: &str, before: char, after: Option<char>) {
    let n = run.len();
    let is_mark = n <= 3 && (!run.starts_with('~') || n == 2);
    let in_word = before.is_alphanumeric() && after.is_some_and(char::is_alphanumeric);
    if !is_mark || (run.starts_with('_') && in_word) {
        return;
    }
    if !before.is_whitespace() {
        if open.last().is_some_and(|last| last == run) {
            open.pop();
            return;
        }
        // Three marks end what two and one have opened.
        if n == 3
            && open.len() >= 2
            && open[open.len() - 2..].iter().all(|m| run.starts_with(m.as_str()))
        {
            open.truncate(open.len() - 2);
            return;
        }
    }
    // At the end of the text it is not known what follows.
    if !after.is_some_and(char::is_whitespace) {
        open.push(run.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(text: &str) -> String {
        let mut text = text.to_string();
        complete(&mut text);
        text
    }

    #[test]
    fn open_marks_are_closed() {
        for (text, want) in [
            ("some **bold", "some **bold**"),
            ("some **bold ", "some **bold**"),
            ("a *b **c", "a *b **c***"),
            ("a `code", "a `code`"),
            ("a ``co`de", "a ``co`de``"),
            ("~~gone", "~~gone~~"),
            ("a **b** c", "a **b** c"),
            ("- **item", "- **item**"),
            ("**a**\n\nb *c", "**a**\n\nb *c*"),
            ("snake_case_name", "snake_case_name"),
            ("2 * 3", "2 * 3"),
            ("a **", "a "),
            ("a `", "a "),
            ("see [this](http://exa", "see this"),
            ("see [this](http://example.com)", "see [this](http://example.com)"),
            ("\\*a", "\\*a"),
            ("`*` a", "`*` a"),
        ] {
            assert_eq!(completed(text), want, "{text:?}");
        }
    }

    #[test]
    fn what_may_become_anything_is_held_back() {
        for (text, want) in [
            ("text\n-", "text\n"),
            ("text\n---", "text\n"),
            ("a\n``", "a\n"),
            ("a\n\n#", "a\n\n"),
            ("a\n\n1.", "a\n\n"),
            ("42", "42"),
            ("a\n- b", "a\n- b"),
        ] {
            assert_eq!(completed(text), want, "{text:?}");
        }
        let mut code = String::from("```rust\nlet\n``");
        hold_fence(&mut code);
        assert_eq!(code, "```rust\nlet\n");
        let mut code = String::from("```");
        hold_fence(&mut code);
        assert_eq!(code, "```");
    }

    #[test]
    fn tables_are_shown_from_their_first_row() {
        for text in ["| a | b |", "| a | b |\n", "| a | b |\n|", "| a | b |\n|---|-"] {
            assert_eq!(completed(text), "| a | b |\n|---|---|\n", "{text:?}");
        }
        for text in ["| a | b |\n|---|---|", "| a | b |\n|:--|--:|\n| 1"] {
            assert_eq!(completed(text), text, "{text:?}");
        }
    }
}
