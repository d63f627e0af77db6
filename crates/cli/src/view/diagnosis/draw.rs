//! Text of a diagnosis.

use jiff::Timestamp;

use super::{Diagnosis, Severity};
use crate::view::age;
use crate::view::escape::visible;

/// Renders the diagnosis. `paint` colours a heading by severity. Control characters are visible on a
/// terminal, which is where `width` is set.
pub fn draw(
    diagnosis: &Diagnosis,
    now: Timestamp,
    width: Option<u16>,
    paint: impl Fn(Severity, &str) -> String,
) -> String {
    let shown = |words: &str| match width {
        Some(_) => visible(words).into_owned(),
        None => words.to_owned(),
    };
    let mut text = paint(diagnosis.severity(), &diagnosis.summary);
    text.push('\n');
    for finding in &diagnosis.findings {
        let word = if finding.severity == Severity::Blocked { "blocked" } else { "progressing" };
        let since = finding.since.map(|_| format!(" for {}", age::since_or_dash(finding.since, now)));
        let head = format!("{}: {word}{}", finding.about, since.unwrap_or_default());
        text.push_str(&format!("\n{}\n", paint(finding.severity, &head)));
        let meaning = match finding.reason.as_str() {
            "" => finding.meaning.clone(),
            reason => format!("{} ({reason})", finding.meaning.trim_end_matches('.')),
        };
        let name = diagnosis.name.as_str();
        let advice =
            finding.advice.replace("INSTANCE", instance_in(&finding.about, name)).replace("NAME", name);
        let lines = [
            ("what", meaning),
            ("message", finding.message.clone()),
            ("plane", finding.plane.clone()),
            ("action", finding.actor.describe().to_owned()),
            ("to do", advice),
        ];
        for (label, words) in lines.iter().filter(|(_, words)| !words.is_empty()) {
            text.push_str(&labelled(label, &shown(words), width));
        }
        for line in &finding.log {
            text.push_str(&labelled("log", &shown(line), width));
        }
    }
    if !diagnosis.findings.is_empty() || !diagnosis.unread.is_empty() {
        text.push_str(&format!("\nPlanes read: {}.", shown(&diagnosis.planes.join(", "))));
    }
    for plane in &diagnosis.unread {
        text.push_str(&format!("\nNot read: {}.", shown(plane)));
    }
    text
}

/// The instance of a finding, otherwise the workload. `polis logs` accepts both.
fn instance_in<'a>(about: &'a str, name: &'a str) -> &'a str {
    about.split_once(", ").map(|(_, instance)| instance).filter(|i| !i.contains(' ')).unwrap_or(name)
}

/// One labelled line; the text is wrapped beside the label.
pub(super) fn labelled(label: &str, words: &str, width: Option<u16>) -> String {
    const INDENT: usize = 10;
    let columns = width.map_or(usize::MAX, |width| usize::from(width).saturating_sub(INDENT).max(20));
    let mut text = format!("  {label:<8}");
    let mut used = 0;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > columns {
            text.push_str(&format!("\n{:INDENT$}", ""));
            used = 0;
        }
        if used > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += length;
    }
    text.push('\n');
    text
}
