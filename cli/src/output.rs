//! Where all that a person or a script reads goes through.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Table, presets};

use crate::exit;

/// Of descriptors 0 to 2, a bit each.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// To be called before anything is opened. Descriptors 0 to 2 that are closed stay so for a program that is run, and are kept busy
/// until then: a file of ours must not become its standard error.
pub fn keep_standard_descriptors_apart() {
    // SAFETY: fcntl with an integer.
    let closed = (0..=2).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } < 0);
    CLOSED.store(closed.map(|fd| 1 << fd).sum(), Ordering::Relaxed);
    loop {
        // SAFETY: opens a descriptor of our own.
        let fd = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if !(0..=2).contains(&fd) {
            // SAFETY: just opened, or none.
            unsafe { libc::close(fd) };
            return;
        }
    }
}

/// Whether this one of descriptors 0 to 2 was closed before it was kept busy: what is written there nobody reads.
pub fn was_closed(fd: i32) -> bool {
    (0..=2).contains(&fd) && CLOSED.load(Ordering::Relaxed) & 1 << fd != 0
}

/// The text without the numbers that the standard library adds to the system's answers: "Permission denied (os error 13)".
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

/// Says something on standard error, in one write. That it cannot be said is nobody's business any more.
pub fn note(message: impl Display) {
    let _ = std::io::stderr()
        .lock()
        .write_all(without_numbers(&format!("fastpath: {}\n", visible(&message.to_string()))).as_bytes());
}

/// A text that others wrote (names of processes, foreign files) as it can be shown: what a terminal would obey is written out.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// Warns.
pub fn warn(message: impl Display) {
    note(format_args!("warning: {message}"));
}

/// Says what takes a while, to a person who is looking.
pub fn progress(message: impl Display) {
    if std::io::stderr().is_terminal() {
        note(message);
    }
}

/// Writes a result; the exit status.
pub fn print(text: impl Display) -> i32 {
    if was_closed(1) {
        note("standard output is closed");
        return exit::NOT_WRITTEN;
    }
    let mut out = std::io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => 0,
        Err(e) => {
            note(format_args!("standard output: {e}"));
            exit::NOT_WRITTEN
        }
    }
}

/// Writes a result as one line of JSON; the exit status.
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
    let json = serde_json::to_string(value);
    json.map(|json| json + "\n")
        .map_err(|error| format!("the result cannot be written as JSON: {error}"))
}

/// A table without lines.
pub fn table<const N: usize>(heads: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(heads);
    if !coloured_output() {
        table.force_no_tty();
    }
    table
}

/// Lines and columns of the terminal that standard output is; `None`: it is none, and a line may be of any length.
pub fn terminal_size() -> Option<(usize, usize)> {
    // SAFETY: the call fills the struct if it answers 0.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(1, libc::TIOCGWINSZ, &mut size) == 0).then_some(size)
    };
    let size = size.filter(|size| size.ws_row > 0 && size.ws_col > 0)?;
    Some((size.ws_row.into(), size.ws_col.into()))
}

/// Whether a table is no wider than the terminal.
pub fn fits(table: &Table) -> bool {
    let width = table.lines().map(|line| line.trim_end().chars().count()).max();
    terminal_size().is_none_or(|(_, columns)| width.unwrap_or(0) <= columns)
}

/// Hides columns of a table until it is no wider than the terminal, the first of `spare` first.
pub fn fit(table: &mut Table, spare: &[usize]) {
    for index in spare {
        if fits(table) {
            return;
        }
        if let Some(column) = table.column_mut(*index) {
            column.set_constraint(ColumnConstraint::Hidden);
        }
    }
}

/// A cell that is green if good and red if bad, on a terminal.
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

/// <https://no-color.org>
fn coloured_output() -> bool {
    can_redraw() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// What a word means.
pub enum Paint {
    Good,
    Bad,
    Doubtful,
    Plain,
}

/// A word in the colour of what it means, on a terminal.
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

/// Every terminal has so many columns, and everybody reads so many.
const COLUMNS: usize = 80;

/// A text behind `head`, broken between words and indented below itself. A word that is too long stands alone, whole.
pub fn wrapped(head: &str, text: &str) -> String {
    wrapped_at(COLUMNS, head, text)
}

fn wrapped_at(columns: usize, head: &str, text: &str) -> String {
    let indent = head.chars().count();
    let mut lines = head.to_owned();
    let mut column = indent;
    for word in text.split_whitespace() {
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
        lines += word;
        column += length;
    }
    lines + "\n"
}

/// A line that is wrapped where it is shown on a terminal, and whole for who looks for words in it.
pub fn fitted(line: &str) -> String {
    match terminal_size() {
        Some((_, columns)) => wrapped_at(columns.min(COLUMNS), "", line),
        None => format!("{line}\n"),
    }
}

/// Returns the time of day here: `2027-01-31 23:59:59`.
pub fn local_time() -> String {
    // SAFETY: time and localtime_r fill what is theirs; strftime writes no more than it is given room for.
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

/// `18.9`, or `-` for what could not be measured.
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
