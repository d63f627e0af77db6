//! The terminal, or the pipe in its place: writing, width, colours, questions.
//!
//! Colours, spinners and questions exist only on a terminal. A pipe gets whole lines without wrapping, so that `grep`
//! and `cut` work; a reader that closes the pipe ends the program quietly.

use std::io::{self, BufRead, IsTerminal, Write};

use console::Style;

use crate::exit::{Exit, Fault};
use crate::view::Mood;

/// Writes a line (or several) to stdout.
pub fn say(text: impl AsRef<str>) {
    write(&mut io::stdout().lock(), text.as_ref(), true);
}

/// Writes to stdout as it is.
pub fn put(text: &str) {
    write(&mut io::stdout().lock(), text, false);
}

/// Writes a remark to stderr, where it does not disturb what stdout is read for.
pub fn remark(text: impl AsRef<str>) {
    write(&mut io::stderr().lock(), text.as_ref(), true);
}

fn write(to: &mut impl Write, text: &str, line: bool) {
    let text = text.trim_end_matches(if line { "\n" } else { "" });
    let written =
        to.write_all(text.as_bytes()).and_then(|()| if line { to.write_all(b"\n") } else { Ok(()) });
    if written.and_then(|()| to.flush()).is_err() {
        // Nobody reads any more: `polis workloads | head -1` is no fault.
        std::process::exit(0);
    }
}

/// Shows a fault.
pub fn complain(fault: &Fault) {
    let word = Style::new().for_stderr().red().bold().apply_to("error:");
    remark(format!("{word} {fault}"));
}

/// The width to fit tables into; none when stdout is no terminal.
pub fn width() -> Option<u16> {
    let terminal = console::Term::stdout();
    terminal.is_term().then(|| terminal.size_checked().map_or(80, |(_, columns)| columns))
}

/// Whether stdout is a terminal: live pictures make sense.
pub fn is_live() -> bool {
    io::stdout().is_terminal()
}

/// Whether somebody sits there and can answer.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks; no is the answer to everything but `y` and `yes`.
pub fn ask(question: &str) -> Result<(), Fault> {
    let mut terminal = io::stderr().lock();
    let _ = write!(terminal, "{question} [y/N] ").and_then(|()| terminal.flush());
    let mut answer = String::new();
    let _ = io::stdin().lock().read_line(&mut answer);
    if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(Fault::new(Exit::Declined, "stopped", "the answer was no", "nothing was changed"))
}

/// Colours a word by how well things stand; plain in a pipe.
pub fn tint(mood: Mood, text: &str) -> String {
    let style = match mood {
        Mood::Good => Style::new().green(),
        Mood::Moving => Style::new().yellow(),
        Mood::Stuck => Style::new().red(),
    };
    style.apply_to(text).to_string()
}

/// A heading; plain in a pipe.
pub fn bold(text: &str) -> String {
    Style::new().bold().apply_to(text).to_string()
}

/// Clears the screen for the next picture of a live view.
pub fn clear() {
    let _ = console::Term::stdout().clear_screen();
}
