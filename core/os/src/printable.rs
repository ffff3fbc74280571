//! Text that another user chooses: names, paths, command lines.

/// Returns a foreign text on one line, as a terminal or a log can show it. Characters that are not printable are
/// escaped as in Rust's string literals: control characters, among them ESC and the end of a line; those that turn the
/// direction of a line; those without width; and those that Unicode does not define.
pub fn printable(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        match is_printable(c) {
            true => shown.push(c),
            false => shown.extend(c.escape_default()),
        }
        shown
    })
}

/// Returns JSON with the characters escaped for which `is_shown` returns false. Its value stays the same: only strings
/// have such characters.
pub fn printable_json(json: &str, is_shown: impl Fn(char) -> bool) -> String {
    let escaped = |c: char| {
        let mut units = [0; 2];
        let units = c.encode_utf16(&mut units).iter();
        units.map(|unit| format!("\\u{unit:04x}")).collect()
    };
    json.chars()
        .map(|c| if is_shown(c) { c.to_string() } else { escaped(c) })
        .collect()
}

/// Returns whether a terminal shows this character as itself.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return matches!(c, ' '..='~');
    }
    // The standard library has the table, but not by itself. It also escapes a combining mark at a text's start.
    let with_another = String::from_iter(['x', c]);
    with_another.escape_debug().count() == 2 && !has_no_width(c)
}

/// Returns whether a printable character is shown as nothing, or as a blank (Default_Ignorable_Code_Point, Unicode 16).
fn has_no_width(c: char) -> bool {
    matches!(
        c,
        '\u{34f}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{ffa0}'
            | '\u{e0100}'..='\u{e01ef}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_could_command_a_terminal_or_deceive_its_reader_is_escaped() {
        for (text, shown) in [
            ("\u{1b}[31mred\u{1b}]0;x\u{7}", r"\u{1b}[31mred\u{1b}]0;x\u{7}"),
            ("a\r\nb\tc\0", r"a\r\nb\tc\u{0}"),
            ("\u{9b}2J\u{7f}", r"\u{9b}2J\u{7f}"),
            (
                "a\u{202e}b\u{2066}\u{200f}\u{61c}",
                r"a\u{202e}b\u{2066}\u{200f}\u{61c}",
            ),
            (
                "a\u{200b}\u{200c}\u{200d}\u{feff}\u{2060}\u{ad}",
                r"a\u{200b}\u{200c}\u{200d}\u{feff}\u{2060}\u{ad}",
            ),
            (
                "\u{2028}\u{2029}\u{e0041}\u{3164}\u{fe0f}",
                r"\u{2028}\u{2029}\u{e0041}\u{3164}\u{fe0f}",
            ),
        ] {
            assert_eq!(printable(text), shown);
        }
    }

    #[test]
    fn text_of_any_language_stays_as_it_is() {
        for text in [
            r#"/usr/bin/a b\c"'~"#,
            "über",
            "u\u{308}ber",
            "日本語",
            "हिन्दी",
            "→ µs 😀",
            "",
        ] {
            assert_eq!(printable(text), text);
        }
    }
}
