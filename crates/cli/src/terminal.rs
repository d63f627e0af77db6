//! Terminal input and output: printing, line wrapping, width, colours, confirmation prompts.
//!
//! On a terminal, control characters in the text are made visible: messages and logs come from workloads. The
//! functions with `styled` in their name print text that contains colours of this module; its other parts
//! have passed [`shown`]. A pipe gets the text unchanged.
//!
//! Colours, spinners, prompts and wrapped lines are used only on a terminal, which would break a line in the
//! middle of a word. A pipe gets whole lines, so that `grep` and `cut` work. When the reader closes the pipe,
//! the program exits without an error.

use std::borrow::Cow;
use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use console::{Style, Term, measure_text_width};

use crate::exit::{CliError, Exit};
use crate::view::Severity;
use crate::view::escape::visible;

/// Whether stdout is kept for a document of `-o`.
static STDOUT_IS_RESERVED: AtomicBool = AtomicBool::new(false);

/// Keeps stdout for the document of `-o`: from now on all other lines go to stderr.
pub fn reserve_stdout() {
    STDOUT_IS_RESERVED.store(true, Ordering::Relaxed);
}

/// Prints one or more lines to stdout.
pub fn print(text: impl AsRef<str>) {
    print_styled(shown(text.as_ref()));
}

/// Prints one or more lines with colours to stdout.
pub fn print_styled(text: impl AsRef<str>) {
    match STDOUT_IS_RESERVED.load(Ordering::Relaxed) {
        true => write(&mut io::stderr().lock(), text.as_ref(), true),
        false => write(&mut io::stdout().lock(), &wrapped(text.as_ref(), width()), true),
    }
}

/// Prints a document to stdout, unwrapped.
pub fn print_document(text: &str) {
    write(&mut io::stdout().lock(), text, true);
}

/// The text with visible control characters, if stdout is a terminal.
pub fn shown(text: &str) -> Cow<'_, str> {
    if is_live() { visible(text) } else { Cow::Borrowed(text) }
}

/// Writes to stdout without wrapping and without a final newline.
pub fn print_raw(text: &str) {
    write(&mut io::stdout().lock(), text, false);
}

/// Prints a note to stderr, so that stdout has only the result.
pub fn note(text: impl AsRef<str>) {
    note_with("", text.as_ref());
}

/// Prints a note after a word with colours.
fn note_with(styled: &str, text: &str) {
    let width = width_of(&Term::stderr());
    let text = if width.is_some() { visible(text) } else { Cow::Borrowed(text) };
    write(&mut io::stderr().lock(), &wrapped(&format!("{styled}{text}"), width), true);
}

fn write(to: &mut impl Write, text: &str, line: bool) {
    let text = text.trim_end_matches(if line { "\n" } else { "" });
    let written =
        to.write_all(text.as_bytes()).and_then(|()| if line { to.write_all(b"\n") } else { Ok(()) });
    if written.and_then(|()| to.flush()).is_err() {
        // The reader closed the pipe, as in `polis workloads | head -1`.
        std::process::exit(0);
    }
}

/// Prints an error to stderr.
pub fn print_error(error: &CliError) {
    let word = Style::new().for_stderr().red().bold().apply_to("error:");
    note_with(&format!("{word} "), &error.to_string());
}

/// Columns of the terminal; `None` if stdout is not a terminal.
pub fn width() -> Option<u16> {
    width_of(&Term::stdout())
}

fn width_of(terminal: &Term) -> Option<u16> {
    terminal.is_term().then(|| terminal.size_checked().map_or(80, |(_, columns)| columns))
}

/// Wraps long lines between words, with the indentation of the line. A word that is longer than the width is
/// not broken, because it is an address or a path that users copy.
fn wrapped(text: &str, width: Option<u16>) -> String {
    let Some(width) = width.map(usize::from) else { return text.to_owned() };
    let fold = |line: &str| {
        if measure_text_width(line) <= width {
            return line.to_owned();
        }
        let margin = &line[..line.len() - line.trim_start().len()];
        let (mut lines, mut space) = (margin.to_owned(), width.saturating_sub(margin.len()));
        for (number, word) in line.trim_start().split(' ').enumerate() {
            let needed = measure_text_width(word);
            if number > 0 && needed + 1 > space {
                lines.push_str(&format!("\n{margin}{word}"));
                space = width.saturating_sub(margin.len() + needed);
                continue;
            }
            if number > 0 {
                lines.push(' ');
                space = space.saturating_sub(1);
            }
            lines.push_str(word);
            space = space.saturating_sub(needed);
        }
        lines
    };
    text.split('\n').map(fold).collect::<Vec<_>>().join("\n")
}

/// Whether stdout is a terminal, so that output can be redrawn.
pub fn is_live() -> bool {
    io::stdout().is_terminal()
}

/// Whether a prompt can be shown and answered.
pub fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Shows a prompt. Every answer except `y` and `yes` is an error.
pub fn confirm(question: &str) -> Result<(), CliError> {
    let mut terminal = io::stderr().lock();
    let _ = write!(terminal, "{question} [y/N] ").and_then(|()| terminal.flush());
    let mut answer = String::new();
    let _ = io::stdin().lock().read_line(&mut answer);
    if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(CliError::new(
        Exit::Declined,
        "cancelled",
        "the prompt was not answered with yes",
        "nothing was changed",
    ))
}

/// Colours a text by severity; no colours in a pipe.
pub fn colored(severity: Severity, text: &str) -> String {
    style(severity).apply_to(shown(text)).to_string()
}

/// A bold heading, coloured by severity; plain in a pipe.
pub fn heading(severity: Severity, text: &str) -> String {
    style(severity).bold().apply_to(shown(text)).to_string()
}

fn style(severity: Severity) -> Style {
    match severity {
        Severity::Ok => Style::new().green(),
        Severity::Progressing => Style::new().yellow(),
        Severity::Blocked => Style::new().red(),
    }
}

/// Clears the screen before the next redraw.
pub fn clear() {
    let _ = Term::stdout().clear_screen();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_wrapped_between_words_with_its_indentation() {
        assert_eq!(wrapped("one two three", Some(80)), "one two three");
        assert_eq!(wrapped("one two three", Some(7)), "one two\nthree");
        assert_eq!(wrapped("  one two three\nfour", Some(9)), "  one two\n  three\nfour");
        assert_eq!(
            wrapped("see https://a.very.long/address now", Some(10)),
            "see\nhttps://a.very.long/address\nnow"
        );
        assert_eq!(wrapped("one two three", None), "one two three");
    }

    #[test]
    fn colours_do_not_count_as_width() {
        assert_eq!(wrapped("\u{1b}[31mred\u{1b}[0m two", Some(7)), "\u{1b}[31mred\u{1b}[0m two");
    }
}
