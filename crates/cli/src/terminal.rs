//! The terminal, or the pipe in its place: writing, width, colours, questions.
//!
//! Colours, spinners and questions exist only on a terminal, and so do folded lines: a terminal breaks a sentence in the
//! middle of a word. A pipe gets whole lines, so that `grep` and `cut` work; a reader that closes it ends the program
//! quietly.

use std::io::{self, BufRead, IsTerminal, Write};

use console::{Style, Term, measure_text_width};

use crate::exit::{Exit, Fault};
use crate::view::Mood;

/// Writes a line (or several) to stdout.
pub fn say(text: impl AsRef<str>) {
    write(&mut io::stdout().lock(), &folded(text.as_ref(), width()), true);
}

/// Writes to stdout as it is.
pub fn put(text: &str) {
    write(&mut io::stdout().lock(), text, false);
}

/// Writes a remark to stderr, where it does not disturb what stdout is read for.
pub fn remark(text: impl AsRef<str>) {
    write(&mut io::stderr().lock(), &folded(text.as_ref(), width_of(&Term::stderr())), true);
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
    width_of(&Term::stdout())
}

fn width_of(terminal: &Term) -> Option<u16> {
    terminal.is_term().then(|| terminal.size_checked().map_or(80, |(_, columns)| columns))
}

/// Breaks lines that are too long between words, and goes on below where the line began. A word that does not fit stays
/// whole: it is an address or a path, and somebody wants to copy it.
fn folded(text: &str, width: Option<u16>) -> String {
    let Some(width) = width.map(usize::from) else { return text.to_owned() };
    let fold = |line: &str| {
        if measure_text_width(line) <= width {
            return line.to_owned();
        }
        let margin = &line[..line.len() - line.trim_start().len()];
        let (mut lines, mut room) = (margin.to_owned(), width.saturating_sub(margin.len()));
        for (number, word) in line.trim_start().split(' ').enumerate() {
            let needed = measure_text_width(word);
            if number > 0 && needed + 1 > room {
                lines.push_str(&format!("\n{margin}{word}"));
                room = width.saturating_sub(margin.len() + needed);
                continue;
            }
            if number > 0 {
                lines.push(' ');
                room = room.saturating_sub(1);
            }
            lines.push_str(word);
            room = room.saturating_sub(needed);
        }
        lines
    };
    text.split('\n').map(fold).collect::<Vec<_>>().join("\n")
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
    let _ = Term::stdout().clear_screen();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_breaks_between_words_and_goes_on_under_its_beginning() {
        assert_eq!(folded("one two three", Some(80)), "one two three");
        assert_eq!(folded("one two three", Some(7)), "one two\nthree");
        assert_eq!(folded("  one two three\nfour", Some(9)), "  one two\n  three\nfour");
        assert_eq!(
            folded("see https://a.very.long/address now", Some(10)),
            "see\nhttps://a.very.long/address\nnow"
        );
        assert_eq!(folded("one two three", None), "one two three");
    }

    #[test]
    fn colours_take_no_room() {
        assert_eq!(folded("\u{1b}[31mred\u{1b}[0m two", Some(7)), "\u{1b}[31mred\u{1b}[0m two");
    }
}
