//! Parser for the query string form of label selectors.

use std::collections::BTreeSet;

use super::{Operator, Requirement, SelectorError, TERMS_MAX};
use crate::error::ValidationError;
use crate::names;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Unknown,
    End,
    Close,
    Comma,
    Bang,
    DoubleEquals,
    Equals,
    Greater,
    Word,
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

/// Splits the text into tokens and parses requirements with one token of lookahead.
pub(super) struct Parser<'a> {
    tokens: Vec<(Token, &'a str)>,
    at: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut parser = Self { tokens: Vec::new(), at: 0 };
        let special = |b: u8| matches!(b, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<');
        let blank = |b: u8| matches!(b, b' ' | b'\t' | b'\r' | b'\n');
        let bytes = text.as_bytes();
        let mut i = 0;
        while i < bytes.len() && bytes[i] != 0 {
            let start = i;
            if blank(bytes[i]) {
                i += 1;
                continue;
            }
            if special(bytes[i]) {
                let pair = text.get(i..i + 2).unwrap_or_default();
                let (token, length) = match (bytes[i], pair) {
                    (_, "==") => (Token::DoubleEquals, 2),
                    (_, "!=") => (Token::NotEquals, 2),
                    (b'=', _) => (Token::Equals, 1),
                    (b'!', _) => (Token::Bang, 1),
                    (b'(', _) => (Token::Open, 1),
                    (b')', _) => (Token::Close, 1),
                    (b',', _) => (Token::Comma, 1),
                    (b'>', _) => (Token::Greater, 1),
                    (b'<', _) => (Token::Less, 1),
                    _ => (Token::Unknown, 1),
                };
                i += length;
                parser.tokens.push((token, &text[start..i]));
                continue;
            }
            while i < bytes.len() && bytes[i] != 0 && !special(bytes[i]) && !blank(bytes[i]) {
                i += 1;
            }
            let word = &text[start..i];
            let token = match word {
                "in" => Token::In,
                "notin" => Token::NotIn,
                _ => Token::Word,
            };
            parser.tokens.push((token, word));
        }
        parser.tokens.push((Token::End, ""));
        parser
    }

    fn fail<T>(&self, text: String) -> Result<T, SelectorError> {
        Err(SelectorError(text))
    }

    /// The next token where a key or value is expected: `in` and `notin` are ordinary words there.
    fn peek(&self) -> (Token, &'a str) {
        match self.tokens.get(self.at).copied().unwrap_or((Token::End, "")) {
            (Token::In | Token::NotIn, text) => (Token::Word, text),
            other => other,
        }
    }

    fn next(&mut self) -> (Token, &'a str) {
        let token = self.peek();
        self.at += 1;
        token
    }

    pub(super) fn selector(&mut self) -> Result<Vec<Requirement>, SelectorError> {
        let mut terms = Vec::new();
        loop {
            match self.peek() {
                (Token::Word | Token::Bang, _) => {
                    if terms.len() == TERMS_MAX {
                        return self.fail(format!(
                            "unable to parse requirement: more than {TERMS_MAX} requirements"
                        ));
                    }
                    let term = self
                        .requirement()
                        .map_err(|e| SelectorError(format!("unable to parse requirement: {e}")))?;
                    terms.push(term);
                    match self.next() {
                        (Token::End, _) => return Ok(terms),
                        (Token::Comma, _) => match self.peek() {
                            (Token::Word | Token::Bang, _) => {}
                            (_, text) => {
                                return self.fail(format!("found '{text}', expected: identifier after ','"));
                            }
                        },
                        (_, text) => {
                            return self.fail(format!("found '{text}', expected: ',' or 'end of string'"));
                        }
                    }
                }
                (Token::End, _) => return Ok(terms),
                (_, text) => {
                    return self.fail(format!("found '{text}', expected: !, identifier, or 'end of string'"));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let mut token = self.next();
        let absent = token.0 == Token::Bang;
        if absent {
            token = self.next();
        }
        let (Token::Word, key) = token else {
            return self.fail(format!("found '{}', expected: identifier", token.1));
        };
        let messages = names::label_key(key);
        if !messages.is_empty() {
            return self.fail(ValidationError::invalid("<nil>", key, messages.join("; ")).to_string());
        }
        if absent {
            return Requirement::new(key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Requirement::new(key, Operator::Exists, Vec::new());
        }
        let (token, text) = self.tokens.get(self.at).copied().unwrap_or((Token::End, ""));
        self.at += 1;
        let operator = match token {
            Token::In => Operator::In,
            Token::NotIn => Operator::NotIn,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::NotEquals => Operator::NotEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            _ => return self.fail(format!("found '{text}', expected: in, notin, =, ==, !=, gt, lt")),
        };
        let values = match operator {
            Operator::In | Operator::NotIn => self.set()?,
            _ => self.exact()?,
        };
        Requirement::new(key, operator, values.into_iter().map(str::to_owned).collect())
    }

    fn exact(&mut self) -> Result<BTreeSet<&'a str>, SelectorError> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(BTreeSet::from([""]));
        }
        match self.next() {
            (Token::Word, text) => Ok(BTreeSet::from([text])),
            (_, text) => self.fail(format!("found '{text}', expected: identifier")),
        }
    }

    fn set(&mut self) -> Result<BTreeSet<&'a str>, SelectorError> {
        match self.next() {
            (Token::Open, _) => {}
            (_, text) => return self.fail(format!("found '{text}' expected: '('")),
        }
        match self.peek() {
            (Token::Close, _) => {
                self.next();
                return Ok(BTreeSet::from([""]));
            }
            (Token::Word | Token::Comma, _) => {}
            (_, text) => return self.fail(format!("found '{text}', expected: ',', ')' or identifier")),
        }
        // An omitted value is the empty value: "(,a)", "(a,,b)", "(a,)".
        let mut values = BTreeSet::new();
        loop {
            match self.next() {
                (Token::Word, text) => {
                    values.insert(text);
                    match self.peek() {
                        (Token::Comma, _) => {}
                        (Token::Close, _) => break,
                        (_, text) => return self.fail(format!("found '{text}', expected: ',' or ')'")),
                    }
                }
                (Token::Comma, _) => {
                    if values.is_empty() {
                        values.insert("");
                    }
                    match self.peek() {
                        (Token::Close, _) => {
                            values.insert("");
                            break;
                        }
                        (Token::Comma, _) => {
                            values.insert("");
                        }
                        _ => {}
                    }
                }
                (_, text) => return self.fail(format!("found '{text}', expected: ',', or identifier")),
            }
        }
        self.next();
        Ok(values)
    }
}
