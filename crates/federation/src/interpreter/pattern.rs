//! Lua 5.1 pattern matching with a step budget.
//!
//! Lua's own matcher backtracks in C code, where instructions are not counted: a few `a*` over a long string
//! would block the host for hours. This matcher counts every step against the budget of the call.

/// Maximum number of captures of a pattern, as in Lua.
const MAX_CAPTURES: usize = 32;
/// Maximum recursion depth of the matcher; Lua allows 200 nested C calls.
const MAX_DEPTH: usize = 200;
const ESCAPE: u8 = b'%';

/// Why a match was aborted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PatternError {
    #[error("malformed pattern: {0}")]
    Malformed(&'static str),
    #[error("pattern too complex")]
    TooComplex,
    #[error("interrupted: the script exceeded its budget in a pattern match")]
    OutOfBudget,
}

/// A capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capture {
    Text {
        start: usize,
        end: usize,
    },
    /// `()`: a one-based position.
    Position(usize),
}

/// A match: its range and its captures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Match {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) captures: Vec<Capture>,
}

/// Finds the first match of `pattern` in `text` at or after `from`, spending at most `steps`.
pub(crate) fn find(
    text: &[u8],
    pattern: &[u8],
    from: usize,
    steps: &mut u64,
) -> Result<Option<Match>, PatternError> {
    let (anchored, body) = match pattern.strip_prefix(b"^") {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let mut start = from;
    while start <= text.len() {
        let mut matcher = Matcher { text, pattern: body, open: Vec::new(), steps, depth: 0 };
        if let Some(end) = matcher.run(start, 0)? {
            let captures = matcher.captured()?;
            return Ok(Some(Match { start, end, captures }));
        }
        if anchored {
            return Ok(None);
        }
        start += 1;
    }
    Ok(None)
}

/// Whether a pattern has no special characters, so that a plain search is sufficient.
pub(crate) fn is_plain(pattern: &[u8]) -> bool {
    !pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))
}

/// Finds `needle` in `text` at or after `from`, spending at most `steps`: one for 16 compared bytes.
pub(crate) fn find_plain(
    text: &[u8],
    needle: &[u8],
    from: usize,
    steps: &mut u64,
) -> Result<Option<usize>, PatternError> {
    let Some(&first) = needle.first() else { return Ok((from <= text.len()).then_some(from)) };
    let last = (text.len() + 1).saturating_sub(needle.len());
    let mut compared = 0;
    for at in from..last {
        compared += 1;
        if text[at] == first {
            let equal = text[at..].iter().zip(needle).take_while(|(a, b)| a == b).count();
            if equal == needle.len() {
                return Ok(Some(at));
            }
            compared += equal;
        }
        if compared >= 16 {
            take(steps, compared as u64 / 16)?;
            compared %= 16;
        }
    }
    Ok(None)
}

/// Takes an amount of the steps; all that are left if they do not suffice.
fn take(steps: &mut u64, amount: u64) -> Result<(), PatternError> {
    match steps.checked_sub(amount) {
        Some(left) => *steps = left,
        None => {
            *steps = 0;
            return Err(PatternError::OutOfBudget);
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Span {
    Open,
    Position,
    Closed(usize),
}

struct Matcher<'a, 'b> {
    text: &'a [u8],
    pattern: &'a [u8],
    open: Vec<(usize, Span)>,
    steps: &'b mut u64,
    depth: usize,
}

type Found = Result<Option<usize>, PatternError>;

impl Matcher<'_, '_> {
    fn spend(&mut self) -> Result<(), PatternError> {
        self.spend_bytes(0)
    }

    /// Takes a step, and one more for 16 bytes that it reads.
    fn spend_bytes(&mut self, bytes: usize) -> Result<(), PatternError> {
        take(self.steps, 1 + bytes as u64 / 16)
    }

    /// Matches the pattern from `p` against the text from `s`; returns the end of the match, if any.
    fn run(&mut self, s: usize, p: usize) -> Found {
        self.depth += 1;
        let found = if self.depth > MAX_DEPTH { Err(PatternError::TooComplex) } else { self.advance(s, p) };
        self.depth -= 1;
        found
    }

    fn advance(&mut self, mut s: usize, mut p: usize) -> Found {
        loop {
            self.spend()?;
            let Some(&head) = self.pattern.get(p) else { return Ok(Some(s)) };
            match head {
                b'(' if self.pattern.get(p + 1) == Some(&b')') => {
                    return self.capture(s, p + 2, Span::Position);
                }
                b'(' => return self.capture(s, p + 1, Span::Open),
                b')' => return self.close(s, p + 1),
                b'$' if p + 1 == self.pattern.len() => return Ok((s == self.text.len()).then_some(s)),
                ESCAPE => match self.pattern.get(p + 1) {
                    Some(b'b') => match self.balanced(s, p + 2)? {
                        Some(end) => {
                            s = end;
                            p += 4;
                            continue;
                        }
                        None => return Ok(None),
                    },
                    Some(b'f') => {
                        p += 2;
                        if self.pattern.get(p) != Some(&b'[') {
                            return Err(PatternError::Malformed("missing '[' after '%f'"));
                        }
                        let end = self.class_end(p)?;
                        self.spend_bytes(end - p)?;
                        let before = if s == 0 { 0 } else { self.text[s - 1] };
                        let here = self.text.get(s).copied().unwrap_or(0);
                        if self.in_set(before, p, end - 1) || !self.in_set(here, p, end - 1) {
                            return Ok(None);
                        }
                        p = end;
                        continue;
                    }
                    Some(digit @ b'0'..=b'9') => match self.back_reference(s, *digit)? {
                        Some(end) => {
                            s = end;
                            p += 2;
                            continue;
                        }
                        None => return Ok(None),
                    },
                    _ => {}
                },
                _ => {}
            }
            let end = self.class_end(p)?;
            // Every test of a set reads it.
            self.spend_bytes(end - p)?;
            let fits = self.fits(s, p, end);
            match self.pattern.get(end) {
                Some(b'?') => {
                    if fits && let Some(found) = self.run(s + 1, end + 1)? {
                        return Ok(Some(found));
                    }
                    p = end + 1;
                }
                Some(b'*') => return self.greedy(s, p, end),
                Some(b'+') => return if fits { self.greedy(s + 1, p, end) } else { Ok(None) },
                Some(b'-') => return self.lazy(s, p, end),
                _ if fits => {
                    s += 1;
                    p = end;
                }
                _ => return Ok(None),
            }
        }
    }

    fn greedy(&mut self, s: usize, p: usize, end: usize) -> Found {
        let mut count = 0;
        while self.fits(s + count, p, end) {
            self.spend_bytes(end - p)?;
            count += 1;
        }
        loop {
            if let Some(found) = self.run(s + count, end + 1)? {
                return Ok(Some(found));
            }
            match count {
                0 => return Ok(None),
                _ => count -= 1,
            }
        }
    }

    fn lazy(&mut self, mut s: usize, p: usize, end: usize) -> Found {
        loop {
            if let Some(found) = self.run(s, end + 1)? {
                return Ok(Some(found));
            }
            self.spend_bytes(end - p)?;
            if !self.fits(s, p, end) {
                return Ok(None);
            }
            s += 1;
        }
    }

    fn capture(&mut self, s: usize, p: usize, span: Span) -> Found {
        if self.open.len() >= MAX_CAPTURES {
            return Err(PatternError::Malformed("too many captures"));
        }
        self.open.push((s, span));
        let found = self.run(s, p)?;
        if found.is_none() {
            self.open.pop();
        }
        Ok(found)
    }

    fn close(&mut self, s: usize, p: usize) -> Found {
        let level = self
            .open
            .iter()
            .rposition(|(_, span)| matches!(span, Span::Open))
            .ok_or(PatternError::Malformed("')' without '('"))?;
        self.open[level].1 = Span::Closed(s);
        let found = self.run(s, p)?;
        if found.is_none() {
            self.open[level].1 = Span::Open;
        }
        Ok(found)
    }

    fn balanced(&mut self, s: usize, p: usize) -> Found {
        let (Some(&opening), Some(&closing)) = (self.pattern.get(p), self.pattern.get(p + 1)) else {
            return Err(PatternError::Malformed("'%b' needs two characters"));
        };
        if self.text.get(s) != Some(&opening) {
            return Ok(None);
        }
        let mut depth = 1_usize;
        for at in s + 1..self.text.len() {
            self.spend()?;
            let byte = self.text[at];
            if byte == closing {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(at + 1));
                }
            } else if byte == opening {
                depth += 1;
            }
        }
        Ok(None)
    }

    fn back_reference(&mut self, s: usize, digit: u8) -> Found {
        let level = usize::from(digit).wrapping_sub(usize::from(b'1'));
        let Some((start, Span::Closed(end))) = self.open.get(level).copied() else {
            return Err(PatternError::Malformed("invalid capture index"));
        };
        self.spend_bytes(end - start)?;
        let wanted = &self.text[start..end];
        Ok(self.text[s..].starts_with(wanted).then_some(s + wanted.len()))
    }

    /// The end of the character class at `p`.
    fn class_end(&self, p: usize) -> Result<usize, PatternError> {
        match self.pattern[p] {
            ESCAPE if p + 1 >= self.pattern.len() => Err(PatternError::Malformed("ends with '%'")),
            ESCAPE => Ok(p + 2),
            b'[' => {
                let mut at = p + 1;
                if self.pattern.get(at) == Some(&b'^') {
                    at += 1;
                }
                // A ']' in the first position is a literal.
                let first = at;
                loop {
                    match self.pattern.get(at) {
                        None => return Err(PatternError::Malformed("missing ']'")),
                        Some(b']') if at > first => return Ok(at + 1),
                        Some(&ESCAPE) => at += 2,
                        Some(_) => at += 1,
                    }
                }
            }
            _ => Ok(p + 1),
        }
    }

    fn fits(&self, s: usize, p: usize, end: usize) -> bool {
        let Some(&byte) = self.text.get(s) else { return false };
        match self.pattern[p] {
            b'.' => true,
            ESCAPE => in_class(byte, self.pattern[p + 1]),
            b'[' => self.in_set(byte, p, end - 1),
            literal => literal == byte,
        }
    }

    /// Whether `byte` is in the set between `[` at `open` and `]` at `close`.
    fn in_set(&self, byte: u8, open: usize, close: usize) -> bool {
        let set = &self.pattern[open + 1..close];
        let (wanted, set) = match set.strip_prefix(b"^") {
            Some(rest) => (false, rest),
            None => (true, set),
        };
        let mut at = 0;
        while at < set.len() {
            let hit = if set[at] == ESCAPE && at + 1 < set.len() {
                at += 2;
                in_class(byte, set[at - 1])
            } else if at + 2 < set.len() && set[at + 1] == b'-' {
                at += 3;
                (set[at - 3]..=set[at - 1]).contains(&byte)
            } else {
                at += 1;
                set[at - 1] == byte
            };
            if hit {
                return wanted;
            }
        }
        !wanted
    }

    fn captured(&self) -> Result<Vec<Capture>, PatternError> {
        self.open
            .iter()
            .map(|(start, span)| match span {
                Span::Closed(end) => Ok(Capture::Text { start: *start, end: *end }),
                Span::Position => Ok(Capture::Position(start + 1)),
                Span::Open => Err(PatternError::Malformed("unfinished capture")),
            })
            .collect()
    }
}

fn in_class(byte: u8, class: u8) -> bool {
    let hit = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    hit != class.is_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(text: &str, pattern: &str) -> Option<Vec<String>> {
        let found = find(text.as_bytes(), pattern.as_bytes(), 0, &mut 100_000).expect("a valid pattern")?;
        let mut all = vec![text[found.start..found.end].to_owned()];
        all.extend(found.captures.iter().map(|capture| match capture {
            Capture::Text { start, end } => text[*start..*end].to_owned(),
            Capture::Position(at) => at.to_string(),
        }));
        Some(all)
    }

    #[test]
    fn patterns_match_as_in_lua() {
        for (text, pattern, expected) in [
            ("hello world", "o w", Some(&["o w"][..])),
            ("key = value", "^(%w+)%s*=%s*(%w+)$", Some(&["key = value", "key", "value"])),
            ("aaa", "a-", Some(&[""])),
            ("aaab", "a-b", Some(&["aaab"])),
            ("f(a(b)c)d", "%b()", Some(&["(a(b)c)"])),
            ("THE (quick) fox", "%f[%a]%a+%f[%A]", Some(&["THE"])),
            ("xx yy", "()yy", Some(&["yy", "4"])),
            ("say 'hi'", "(['\"])(.-)%1", Some(&["'hi'", "'", "hi"])),
            ("v1.2.3", "^v(%d+)%.(%d+)", Some(&["v1.2", "1", "2"])),
            ("a]b", "[]]", Some(&["]"])),
            ("abc", "[^a-b]", Some(&["c"])),
            ("colour", "colou?r", Some(&["colour"])),
            ("abc", "^b", None),
            ("", "^$", Some(&[""])),
        ] {
            let expected = expected.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>());
            assert_eq!(captured(text, pattern), expected, "{pattern:?} in {text:?}");
        }
    }

    #[test]
    fn an_exponential_pattern_exceeds_the_budget() {
        let text = "a".repeat(10_000);
        let pattern = format!("{}b", "a*".repeat(20));
        let mut steps = 1_000_000;
        assert_eq!(find(text.as_bytes(), pattern.as_bytes(), 0, &mut steps), Err(PatternError::OutOfBudget));
    }

    #[test]
    fn a_malformed_pattern_is_an_error() {
        for pattern in ["%", "[a", "(", ")", "%1", "%b(", "%fa"] {
            let result = find(b"(abc)", pattern.as_bytes(), 0, &mut 1000);
            assert!(matches!(result, Err(PatternError::Malformed(_))), "{pattern:?} gave {result:?}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(256))]
        #[test]
        fn any_pattern_terminates(text in "[ab(%]{0,40}", pattern in "[ab()%.*+?$^\\[\\]1-]{0,12}") {
            let mut steps = 10_000;
            let _ = find(text.as_bytes(), pattern.as_bytes(), 0, &mut steps);
        }

        #[test]
        fn a_plain_search_and_an_escaped_pattern_agree(text in "[a-c]{0,20}", needle in "[a-c]{1,4}") {
            let found = find(text.as_bytes(), needle.as_bytes(), 0, &mut 10_000).expect("plain").map(|m| m.start);
            proptest::prop_assert_eq!(Ok(found), find_plain(text.as_bytes(), needle.as_bytes(), 0, &mut 10_000));
        }
    }
}
