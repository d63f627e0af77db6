//! Makes control characters visible, so that text of objects and logs cannot control the terminal: move the
//! cursor over other output, change the title, or write to the clipboard.

use std::borrow::Cow;

/// The text with its control characters as `cat -v` prints them, such as `^[` for escape; line feeds and tabs
/// stay.
pub fn visible(text: &str) -> Cow<'_, str> {
    let control = |letter: char| letter.is_control() && letter != '\n' && letter != '\t';
    if !text.contains(control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        match u32::from(letter) {
            _ if !control(letter) => shown.push(letter),
            code @ 0x80.. => shown.push_str(&format!("M-^{}", caret(code - 0x80))),
            code => shown.push_str(&format!("^{}", caret(code))),
        }
    }
    Cow::Owned(shown)
}

/// The letter after the caret: `A` for 1, `?` for 127.
fn caret(code: u32) -> char {
    char::from_u32(code ^ 0x40).unwrap_or('?')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_visible_and_other_text_is_unchanged() {
        for (text, shown) in [
            ("plain text, Zürich ✔\n\twith lines", "plain text, Zürich ✔\n\twith lines"),
            ("\u{1b}[2J\u{1b}]0;title\u{7}", "^[[2J^[]0;title^G"),
            ("100 %\rdone\0\u{8}\u{7f}", "100 %^Mdone^@^H^?"),
            ("\u{9b}31m\u{80}", "M-^[31mM-^@"),
        ] {
            assert_eq!(visible(text), shown);
        }
    }
}
