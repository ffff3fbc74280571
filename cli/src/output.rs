//! Output for users and scripts.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Table, presets};
use fastpath_os::{is_printable, printable};

use crate::exit;

/// Which of descriptors 0 to 2 were closed, a bit each.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Occupies those of descriptors 0 to 2 that are closed. Must be called before anything is opened. They stay closed for
/// a program that is run; until then they are occupied, so that no file of this process becomes its standard error.
pub fn keep_standard_descriptors_apart() {
    // SAFETY: fcntl with integers.
    let closed = (0..=2).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } < 0);
    CLOSED.store(closed.map(|fd| 1 << fd).sum(), Ordering::Relaxed);
    loop {
        // SAFETY: opens a new descriptor, with a C string.
        let fd = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if !(0..=2).contains(&fd) {
            // SAFETY: closes the descriptor just opened, or -1, which is refused.
            unsafe { libc::close(fd) };
            return;
        }
    }
}

/// Returns whether this one of descriptors 0 to 2 was closed at the start, so that no process reads what is written
/// there.
pub fn was_closed(fd: i32) -> bool {
    (0..=2).contains(&fd) && CLOSED.load(Ordering::Relaxed) & 1 << fd != 0
}

/// Returns the text without the numbers that the standard library adds to the system's errors: "Permission denied (os
/// error 13)".
fn without_numbers(text: &str) -> String {
    const BEFORE: &str = " (os error ";
    let mut rest = text;
    let mut plain = String::with_capacity(text.len());
    while let Some(at) = rest.find(BEFORE) {
        let behind = &rest[at + BEFORE.len()..];
        let digits = behind.len() - behind.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        match behind[digits..].strip_prefix(')') {
            Some(more) if digits > 0 => {
                plain.push_str(&rest[..at]);
                rest = more;
            }
            _ => {
                plain.push_str(&rest[..at + BEFORE.len()]);
                rest = behind;
            }
        }
    }
    plain + rest
}

/// Prints a message on standard error, in one write. There is nowhere to report a failure.
pub fn note(message: impl Display) {
    let text = without_numbers(&format!("fastpath: {message}\n"));
    let _ = error_output(&match terminal_size_of(2) {
        Some((_, columns)) => text.lines().map(|line| wrapped_at(columns, "", line)).collect(),
        None => text,
    });
}

/// Writes a text to standard error, in one write.
pub fn error_output(text: &str) -> std::io::Result<()> {
    std::io::stderr().lock().write_all(in_charset(safe(text)).as_bytes())
}

/// Returns a text that may contain foreign parts as it is safe to print: only its lines, tabs and colours have an
/// effect. A foreign part must be made [`printable`] before it is mixed with others, because it may have colours, too.
fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = colour_length(rest).unwrap_or(c.len_utf8());
        let (first, more) = rest.split_at(length);
        match matches!(c, '\n' | '\t') || length > c.len_utf8() || is_printable(c) {
            true => safe += first,
            false => safe += &printable(first),
        }
        rest = more;
    }
    safe
}

/// Returns the length of the control sequence that selects a colour (ECMA-48) at the start of a text.
fn colour_length(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let end = parameters.find(|c: char| c != ';' && !c.is_ascii_digit())?;
    parameters[end..].starts_with('m').then_some("\x1b[".len() + end + 1)
}

/// Prints a warning.
pub fn warn(message: impl Display) {
    note(format_args!("warning: {message}"));
}

/// Reports slow work, if standard error is a terminal.
pub fn progress(message: impl Display) {
    if std::io::stderr().is_terminal() {
        note(message);
    }
}

/// Prints a result; returns the exit status.
pub fn print(text: impl Display) -> i32 {
    redraw("", text)
}

/// Prints a text after a sequence that moves the terminal's cursor; returns the exit status.
pub fn redraw(cursor: &str, text: impl Display) -> i32 {
    write_out(cursor, in_charset(text.to_string()))
}

/// Prints HTML, which is UTF-8 in every locale; returns the exit status.
pub fn print_html(text: impl Display) -> i32 {
    write_out("", text)
}

/// Returns whether this process's locale has all characters, not ASCII alone (locale(7)). If none is named, it has.
fn is_utf8() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(std::env::var_os)
        .find(|value| !value.is_empty());
    let name = locale.map(|name| name.to_string_lossy().to_lowercase());
    name.is_none_or(|name| name.contains("utf-8") || name.contains("utf8"))
}

/// Returns a text in the characters of this process's locale.
fn in_charset(text: String) -> String {
    if is_utf8() { text } else { in_ascii(&text) }
}

fn in_ascii(text: &str) -> String {
    let mut ascii = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0'..='\x7f' => ascii.push(c),
            '±' => ascii += "+/-",
            '×' => ascii.push('x'),
            'µ' => ascii.push('u'),
            '–' => ascii.push('-'),
            '→' => ascii += "->",
            '…' => ascii += "...",
            _ => ascii.push('?'),
        }
    }
    ascii
}

fn write_out(cursor: &str, text: impl Display) -> i32 {
    let mut out = std::io::stdout().lock();
    let text = safe(&text.to_string());
    status_of(write!(out, "{cursor}{text}").and_then(|()| out.flush()))
}

/// Returns the exit status after a result was written to standard output; reports a failure.
pub fn status_of(written: std::io::Result<()>) -> i32 {
    match written {
        _ if was_closed(1) => {
            note("standard output is closed");
            exit::NOT_WRITTEN
        }
        Ok(()) => 0,
        Err(e) => {
            note(format_args!("standard output: {e}"));
            exit::NOT_WRITTEN
        }
    }
}

/// Prints a result as one line of JSON; returns the exit status.
pub fn print_json(value: &impl serde::Serialize) -> i32 {
    match json(value) {
        Ok(json) => print(json),
        Err(why) => {
            note(why);
            exit::NOT_WRITTEN
        }
    }
}

/// Returns a result as one line of JSON.
pub fn json(value: &impl serde::Serialize) -> Result<String, String> {
    let json =
        serde_json::to_string(value).map_err(|error| format!("the result cannot be written as JSON: {error}"))?;
    let has_all = is_utf8();
    let is_shown = |c: char| is_printable(c) && (has_all || c.is_ascii());
    Ok(fastpath_os::printable_json(&json, is_shown) + "\n")
}

/// Returns an empty table without lines.
pub fn table<const N: usize>(heads: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(heads);
    if !coloured_output() {
        table.force_no_tty();
    }
    table
}

/// Returns lines and columns of the terminal that is standard output; `None` if it is not a terminal: lines may then
/// have any length.
pub fn terminal_size() -> Option<(usize, usize)> {
    terminal_size_of(1)
}

fn terminal_size_of(fd: i32) -> Option<(usize, usize)> {
    // SAFETY: TIOCGWINSZ writes a winsize, for which all-zero bytes are valid.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(fd, libc::TIOCGWINSZ, &mut size) == 0).then_some(size)
    };
    let size = size.filter(|size| size.ws_row > 0 && size.ws_col > 0)?;
    Some((size.ws_row.into(), size.ws_col.into()))
}

/// Returns whether a table is no wider than the terminal.
pub fn fits(table: &Table) -> bool {
    let width = table.lines().map(|line| line.trim_end().chars().count()).max();
    terminal_size().is_none_or(|(_, columns)| width.unwrap_or(0) <= columns)
}

/// Hides columns of a table, in the order of `spare`, until it is no wider than the terminal; then wraps its cells.
pub fn fit(table: &mut Table, spare: &[usize]) {
    for index in spare {
        if fits(table) {
            return;
        }
        if let Some(column) = table.column_mut(*index) {
            column.set_constraint(ColumnConstraint::Hidden);
        }
    }
    if let Some((_, columns)) = terminal_size().filter(|_| !fits(table)) {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(columns).unwrap_or(u16::MAX));
    }
}

/// Returns a cell that is green if good and red if bad, on a terminal.
pub fn coloured(text: &str, good: bool, bad: bool) -> Cell {
    match (good, bad) {
        (true, _) => Cell::new(text).fg(Color::Green),
        (_, true) => Cell::new(text).fg(Color::Red),
        _ => Cell::new(text),
    }
}

/// Returns whether standard output is a terminal that obeys control sequences.
pub fn can_redraw() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    std::io::stdout().is_terminal() && !is_dumb
}

/// Returns whether output may be coloured; <https://no-color.org>.
fn coloured_output() -> bool {
    can_redraw() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Meaning of a word.
pub enum Paint {
    Good,
    Bad,
    Doubtful,
    Plain,
}

/// Returns a word in the colour of its meaning, on a terminal.
pub fn painted(word: &str, paint: Paint) -> String {
    // ECMA-48, select graphic rendition: green, red, yellow.
    let colour = match paint {
        Paint::Good => 32,
        Paint::Bad => 31,
        Paint::Doubtful => 33,
        Paint::Plain => return word.to_owned(),
    };
    if coloured_output() {
        format!("\x1b[{colour}m{word}\x1b[0m")
    } else {
        word.to_owned()
    }
}

/// Width of text: every terminal has this many columns.
const COLUMNS: usize = 80;

/// Returns a text after `head`, broken between words, with later lines indented. A word that is too long gets a line of
/// its own. Both may have foreign parts.
pub fn wrapped(head: &str, text: &str) -> String {
    wrapped_at(COLUMNS, head, text)
}

fn wrapped_at(columns: usize, head: &str, text: &str) -> String {
    let indent = head.chars().count();
    let mut lines: String = head.split('\n').map(printable).collect::<Vec<_>>().join("\n");
    let mut column = indent;
    for word in text.split_whitespace().map(printable) {
        let length = word.chars().count();
        if column > indent && column + 1 + length > columns {
            lines += "\n";
            lines += &" ".repeat(indent);
            column = indent;
        }
        if column > indent {
            lines += " ";
            column += 1;
        }
        lines += &word;
        column += length;
    }
    lines + "\n"
}

/// Returns a line that is wrapped on a terminal, and whole otherwise, so that scripts can search it.
pub fn fitted(line: &str) -> String {
    match terminal_size() {
        Some((_, columns)) => wrapped_at(columns.min(COLUMNS), "", line),
        None => format!("{line}\n"),
    }
}

/// Returns the time of day here: `2027-01-31 23:59:59`.
pub fn local_time() -> String {
    // SAFETY: time accepts a null pointer, localtime_r fills a local, and strftime writes no more than the buffer's
    // size.
    let (text, length) = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut fields: libc::tm = std::mem::zeroed();
        let mut text = [0_u8; 32];
        libc::localtime_r(&now, &mut fields);
        let format = c"%Y-%m-%d %H:%M:%S";
        let length = libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &fields);
        (text, length)
    };
    String::from_utf8_lossy(&text[..length]).into_owned()
}

/// Returns `18.9`, or `-` for a missing value.
pub fn nanoseconds(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.1}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errors_number_is_not_shown() {
        assert_eq!(
            without_numbers("x: Permission denied (os error 13); do y"),
            "x: Permission denied; do y"
        );
        for kept in ["(os error x)", "a (os error ", "plain", " (os error )"] {
            assert_eq!(without_numbers(kept), kept);
        }
    }

    #[test]
    fn foreign_text_has_no_effect_on_a_terminal_but_its_lines_and_colours() {
        let colour = "\x1b[31mred\x1b[0m\n\t→";
        assert_eq!(safe(colour), colour);
        for (text, shown) in [
            ("\x1b[2J", "\\u{1b}[2J"),
            ("\x1b[H\x1b[J\x1b]0;x\x07", "\\u{1b}[H\\u{1b}[J\\u{1b}]0;x\\u{7}"),
            ("\x1b[31", "\\u{1b}[31"),
            ("\r\u{9b}2J\u{202e}\u{200b}", "\\r\\u{9b}2J\\u{202e}\\u{200b}"),
        ] {
            assert_eq!(safe(text), shown);
        }
        assert_eq!(
            wrapped("\x1b[1m ", "a\x1b[31m\u{202e}"),
            "\\u{1b}[1m a\\u{1b}[31m\\u{202e}\n"
        );
        let json = json(&"\u{9b}\u{202e}\u{e0041}ü").unwrap();
        assert_eq!(json, "\"\\u009b\\u202e\\udb40\\udc41ü\"\n");
        assert_eq!(
            serde_json::from_str::<String>(&json).unwrap(),
            "\u{9b}\u{202e}\u{e0041}ü"
        );
    }

    #[test]
    fn text_in_ascii_keeps_its_meaning() {
        assert_eq!(in_ascii("2 ± 1 µs – 3× … ü"), "2 +/- 1 us - 3x ... ?");
    }

    #[test]
    fn a_long_text_is_broken_between_words_below_its_head() {
        let text = wrapped("  now  ", &"word ".repeat(30));
        assert!(text.lines().count() > 1);
        assert!(text.lines().all(|line| line.len() <= COLUMNS), "{text}");
        assert!(
            text.lines().skip(1).all(|line| line.starts_with("       word")),
            "{text}"
        );
        assert_eq!(wrapped("> ", "a b"), "> a b\n");
    }

    #[test]
    fn a_word_that_is_too_long_is_left_whole() {
        let path = "/".repeat(100);
        assert_eq!(wrapped("  ", &format!("a {path} b")), format!("  a\n  {path}\n  b\n"));
    }
}
