//! Mutates valid inputs: changes, removes and repeats bytes, inserts tokens, crosses two inputs. In JSON it
//! also replaces values, so that the text stays valid and reaches the code behind the parser.

use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};

/// Longest input, in bytes. Other tests cover the size limit of requests.
const INPUT_MAX: usize = 64 << 10;

pub struct Mutator<'a> {
    valid: &'a [Vec<u8>],
    tokens: &'a [&'a str],
    random: StdRng,
}

impl<'a> Mutator<'a> {
    pub fn new(valid: &'a [Vec<u8>], tokens: &'a [&'a str], random: StdRng) -> Self {
        Self { valid, tokens, random }
    }

    fn one(&mut self) -> &'a [u8] {
        &self.valid[self.random.random_range(0..self.valid.len())]
    }

    fn position(&mut self, length: usize) -> usize {
        self.random.random_range(0..=length)
    }

    /// The next input: a valid one, mutated a few times, mostly once.
    pub fn next(&mut self) -> Vec<u8> {
        let mut input = self.one().to_vec();
        if let Ok(mut value) = serde_json::from_slice::<Value>(&input)
            && self.random.random_range(0..3) > 0
        {
            for _ in 0..self.random.random_range(1..=3) {
                self.mutate_value(&mut value);
            }
            return value.to_string().into_bytes();
        }
        loop {
            self.mutate_bytes(&mut input);
            input.truncate(INPUT_MAX);
            if self.random.random_range(0..3) > 0 {
                return input;
            }
        }
    }

    /// Replaces, removes or duplicates a random value within `value`.
    fn mutate_value(&mut self, value: &mut Value) {
        let stop = self.random.random_range(0..5) == 0;
        match value {
            Value::Object(fields) if !fields.is_empty() && !stop => {
                let n = self.random.random_range(0..fields.len());
                let Some(key) = fields.keys().nth(n).cloned() else { return };
                match self.random.random_range(0..12) {
                    0 => drop(fields.remove(&key)),
                    1 => {
                        let moved = fields.remove(&key).unwrap_or_default();
                        let token = self.tokens[self.random.random_range(0..self.tokens.len())];
                        fields.insert(token.trim_matches(['"', ':']).to_owned(), moved);
                    }
                    _ => self.mutate_value(&mut fields[&key]),
                }
            }
            Value::Array(items) if !items.is_empty() && !stop => {
                let n = self.random.random_range(0..items.len());
                match self.random.random_range(0..8) {
                    0 => drop(items.remove(n)),
                    1 => items.push(items[n].clone()),
                    _ => self.mutate_value(&mut items[n]),
                }
            }
            _ => *value = self.unusual_value(value.clone()),
        }
    }

    fn unusual_value(&mut self, was: Value) -> Value {
        let long = self.random.random_range(1..300);
        let choices = [
            Value::Null,
            json!(true),
            json!(-1),
            json!(0),
            json!(i64::MAX),
            json!(1e300),
            json!(0.5),
            json!(""),
            json!("x".repeat(long)),
            json!("é\u{0}/%"),
            json!("Object"),
            json!([]),
            json!({}),
            json!([null]),
            json!({"a": null}),
            json!([was.clone(), was.clone()]),
            json!({"name": was}),
        ];
        choices[self.random.random_range(0..choices.len())].clone()
    }

    fn mutate_bytes(&mut self, input: &mut Vec<u8>) {
        let at = self.position(input.len());
        match self.random.random_range(0..9) {
            0 if at < input.len() => input[at] = self.random.random(),
            1 if at < input.len() => input[at] ^= 1 << self.random.random_range(0..8),
            2 => {
                let end = (at + self.random.random_range(0..16)).min(input.len());
                drop(input.drain(at..end));
            }
            3 => {
                let end = (at + self.random.random_range(0..64)).min(input.len());
                let piece = input[at..end].repeat(self.random.random_range(1..6));
                drop(input.splice(at..at, piece));
            }
            // Repeated opening brackets make deep nesting.
            4 => {
                let opening =
                    [&b"["[..], b"{\"a\":", b"(", b"- ", b"!", b"a."][self.random.random_range(0..6)];
                let most = if self.random.random_range(0..8) == 0 { 2000 } else { 4 };
                let piece = opening.repeat(self.random.random_range(1..=most));
                drop(input.splice(at..at, piece));
            }
            5 => {
                let other = self.one();
                let from = self.position(other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            6 => input.truncate(at),
            _ => {
                let token = self.tokens[self.random.random_range(0..self.tokens.len())].as_bytes();
                drop(input.splice(at..at, token.iter().copied()));
            }
        }
    }
}
