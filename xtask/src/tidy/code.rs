//! The code in a Rust file, without its comments and the content of its literals.

/// `text` with every character of a comment or a literal replaced by a space. Lines stay where they are.
pub(super) fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let blank = blank_len(rest, code.chars().next_back());
        if blank == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.extend(rest[..blank].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[blank..];
        }
    }
    code
}

/// Bytes of the comment or literal that `rest` starts with; 0 if it starts with code.
fn blank_len(rest: &str, before: Option<char>) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment_len(rest);
    }
    if rest.starts_with('"') {
        return quoted_len(rest, '"').unwrap_or(rest.len());
    }
    if let Some(content) = rest.strip_prefix('\'') {
        // A lifetime has no closing quote after one character.
        let is_literal = content.starts_with('\\') || content.chars().nth(1) == Some('\'');
        return if is_literal { quoted_len(rest, '\'').unwrap_or(0) } else { 0 };
    }
    if rest.starts_with('r') && !before.is_some_and(|c| c.is_alphanumeric() && c != 'b' || c == '_') {
        return raw_string_len(rest).unwrap_or(0);
    }
    0
}

fn block_comment_len(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    loop {
        let ahead = &rest.as_bytes()[at..];
        if ahead.is_empty() {
            return at;
        } else if ahead.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if ahead.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
}

fn quoted_len(rest: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn raw_string_len(rest: &str) -> Option<usize> {
    let after_r = &rest[1..];
    let hashes = after_r.len() - after_r.trim_start_matches('#').len();
    let content = after_r[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", &after_r[..hashes]);
    let len = content.find(&close).map_or(content.len(), |at| at + close.len());
    Some(rest.len() - content.len() + len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, code: &str) {
        let squeezed = code_of(text).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeezed, code);
        assert_eq!(code_of(text).lines().count(), text.lines().count());
    }

    #[test]
    fn comments_are_no_code() {
        check("a // b\nc", "a c");
        check("/// b\n//! c\nd", "d");
        check("a /* b /* c */\n d */ e", "a e");
        check("a / b", "a / b");
        check("a /* never closed", "a");
    }

    #[test]
    fn literals_are_no_code() {
        check("f(\"b\", c)", "f( , c)");
        check(r#"f("a \" b") + c"#, "f( ) + c");
        check("r\"b\\\" c", "c");
        check("br##\"b \"# c\"## d", "b d");
        check("f(\"two\nlines\") c", "f( ) c");
        check("'\"' a '\\'' b '\\u{1F600}' c 'é' d", "a b c d");
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_code() {
        check("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}");
        check("'outer: loop { break 'outer; }", "'outer: loop { break 'outer; }");
        check("r#type for_r#x", "r#type for_r#x");
    }
}
