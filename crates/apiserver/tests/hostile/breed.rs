//! Inputs bred from good ones: bytes changed, cut out, repeated, words put in, two inputs crossed; and for JSON also
//! values changed for others, so that the text stays readable and what follows the parser is reached.

use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};

/// Longest input. What is larger is refused by its size alone, which other tests show.
const LONGEST: usize = 64 << 10;

pub struct Breed<'a> {
    good: &'a [Vec<u8>],
    words: &'a [&'a str],
    chance: StdRng,
}

impl<'a> Breed<'a> {
    pub fn new(good: &'a [Vec<u8>], words: &'a [&'a str], chance: StdRng) -> Self {
        Self { good, words, chance }
    }

    fn one(&mut self) -> &'a [u8] {
        &self.good[self.chance.random_range(0..self.good.len())]
    }

    fn place(&mut self, length: usize) -> usize {
        self.chance.random_range(0..=length)
    }

    /// The next input: a good one, changed a few times, mostly once.
    pub fn next(&mut self) -> Vec<u8> {
        let mut input = self.one().to_vec();
        if let Ok(mut value) = serde_json::from_slice::<Value>(&input)
            && self.chance.random_range(0..3) > 0
        {
            for _ in 0..self.chance.random_range(1..=3) {
                self.change_value(&mut value);
            }
            return value.to_string().into_bytes();
        }
        loop {
            self.change(&mut input);
            input.truncate(LONGEST);
            if self.chance.random_range(0..3) > 0 {
                return input;
            }
        }
    }

    /// Goes down to some value and puts another in its place, takes it away or doubles it.
    fn change_value(&mut self, value: &mut Value) {
        let stop = self.chance.random_range(0..5) == 0;
        match value {
            Value::Object(fields) if !fields.is_empty() && !stop => {
                let n = self.chance.random_range(0..fields.len());
                let Some(key) = fields.keys().nth(n).cloned() else { return };
                match self.chance.random_range(0..12) {
                    0 => drop(fields.remove(&key)),
                    1 => {
                        let moved = fields.remove(&key).unwrap_or_default();
                        let word = self.words[self.chance.random_range(0..self.words.len())];
                        fields.insert(word.trim_matches(['"', ':']).to_owned(), moved);
                    }
                    _ => self.change_value(&mut fields[&key]),
                }
            }
            Value::Array(items) if !items.is_empty() && !stop => {
                let n = self.chance.random_range(0..items.len());
                match self.chance.random_range(0..8) {
                    0 => drop(items.remove(n)),
                    1 => items.push(items[n].clone()),
                    _ => self.change_value(&mut items[n]),
                }
            }
            _ => *value = self.odd(value.clone()),
        }
    }

    fn odd(&mut self, was: Value) -> Value {
        let long = self.chance.random_range(1..300);
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
        choices[self.chance.random_range(0..choices.len())].clone()
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.place(input.len());
        match self.chance.random_range(0..9) {
            0 if at < input.len() => input[at] = self.chance.random(),
            1 if at < input.len() => input[at] ^= 1 << self.chance.random_range(0..8),
            2 => {
                let end = (at + self.chance.random_range(0..16)).min(input.len());
                drop(input.drain(at..end));
            }
            3 => {
                let end = (at + self.chance.random_range(0..64)).min(input.len());
                let piece = input[at..end].repeat(self.chance.random_range(1..6));
                drop(input.splice(at..at, piece));
            }
            // The same opening bracket over and over is how nesting is made deep.
            4 => {
                let opening =
                    [&b"["[..], b"{\"a\":", b"(", b"- ", b"!", b"a."][self.chance.random_range(0..6)];
                let most = if self.chance.random_range(0..8) == 0 { 2000 } else { 4 };
                let piece = opening.repeat(self.chance.random_range(1..=most));
                drop(input.splice(at..at, piece));
            }
            5 => {
                let other = self.one();
                let from = self.place(other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            6 => input.truncate(at),
            _ => {
                let word = self.words[self.chance.random_range(0..self.words.len())].as_bytes();
                drop(input.splice(at..at, word.iter().copied()));
            }
        }
    }
}
