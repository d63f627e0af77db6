//! The subset of JSONPath that printer columns use, with the semantics of kubectl.
//!
//! Supported: `.a.b`, `['a.b']`, `[0]`, `[-1]`, `[1:3]`, `[*]`, `.*`, `..a`, `[0,2]` and filters
//! `[?(@.type=="Ready")]`. An escaped dot (`.a\.b`) is part of the key. A missing key is not an error: the
//! result is empty.

use serde_json::Value;

/// Maximum length of a path, in bytes.
const LENGTH_MAX: usize = 4096;
/// Maximum number of results: repeated `..` on a large object would otherwise return it many times over.
const FOUND_MAX: usize = 100_000;

/// A parsed path.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath {
    segments: Vec<Segment>,
}

#[derive(Debug, Clone, PartialEq)]
enum Segment {
    Field(String),
    Any,
    Descend,
    Slice {
        from: Option<i64>,
        to: Option<i64>,
        step: i64,
    },
    /// One index; an index out of bounds is an error.
    Index(i64),
    Union(Vec<Vec<Segment>>),
    Filter {
        left: Operand,
        operator: Option<Comparison>,
        right: Operand,
    },
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Path(Vec<Segment>),
    Constant(Value),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

/// A path that is not valid JSONPath.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to parse JSONPath {path:?}: {why}")]
pub struct PathError {
    path: String,
    why: String,
}

impl JsonPath {
    /// Parses a path of a CRD; surrounding braces are allowed.
    pub fn parse(path: &str) -> Result<Self, PathError> {
        let fail = |why: String| PathError { path: path.chars().take(200).collect(), why };
        if path.len() > LENGTH_MAX {
            return Err(fail(format!("longer than {LENGTH_MAX}")));
        }
        let inner = path.trim().strip_prefix('{').and_then(|p| p.strip_suffix('}')).unwrap_or(path.trim());
        let chars: Vec<char> = inner.chars().collect();
        let mut parser = Parser { chars: &chars, at: 0, depth: 0 };
        let segments = parser.segments(&[]).map_err(&fail)?;
        if parser.at < chars.len() {
            return Err(fail(format!("unexpected {:?}", chars[parser.at])));
        }
        Ok(Self { segments })
    }

    /// All matching values, in order. An index out of bounds and a filter on a non-list are errors.
    pub fn find<'v>(&self, value: &'v Value) -> Result<Vec<&'v Value>, String> {
        walk(&self.segments, vec![value])
    }

    /// The first matching value.
    pub fn first<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        self.find(value).ok()?.first().copied()
    }
}

struct Parser<'c> {
    chars: &'c [char],
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        self.at += usize::from(found);
        found
    }

    fn blanks(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn expect(&mut self, c: char) -> Result<(), String> {
        if self.eat(c) { Ok(()) } else { Err(format!("expected {c:?} at {}", self.at)) }
    }

    /// Parses segments up to the end or to one of `stops`.
    fn segments(&mut self, stops: &[char]) -> Result<Vec<Segment>, String> {
        let mut segments = Vec::new();
        while let Some(c) = self.peek() {
            if stops.contains(&c) || (c.is_whitespace() && !stops.is_empty()) {
                break;
            }
            match c {
                '$' | '@' if segments.is_empty() => self.at += 1,
                '.' => {
                    self.at += 1;
                    if self.eat('.') {
                        segments.push(Segment::Descend);
                    }
                    match self.peek() {
                        Some('[') | None => {}
                        Some('*') => {
                            self.at += 1;
                            segments.push(Segment::Any);
                        }
                        Some(_) => {
                            let name = self.name(stops);
                            if name.is_empty() {
                                return Err(format!("empty name at {}", self.at));
                            }
                            segments.push(Segment::Field(name));
                        }
                    }
                }
                '[' => segments.push(self.bracket()?),
                '*' => {
                    self.at += 1;
                    segments.push(Segment::Any);
                }
                _ if segments.is_empty() && !c.is_whitespace() => {
                    let name = self.name(stops);
                    if name.is_empty() {
                        return Err(format!("unexpected {c:?}"));
                    }
                    segments.push(Segment::Field(name));
                }
                other => return Err(format!("unexpected {other:?}")),
            }
        }
        Ok(segments)
    }

    fn name(&mut self, stops: &[char]) -> String {
        let mut out = String::new();
        while let Some(c) = self.peek() {
            if c == '\\' {
                self.at += 1;
                out.extend(self.peek());
                self.at += 1;
                continue;
            }
            if matches!(c, '.' | '[' | ']' | '{' | '}' | '(' | ')' | ',')
                || c.is_whitespace()
                || stops.contains(&c)
            {
                break;
            }
            out.push(c);
            self.at += 1;
        }
        out
    }

    fn bracket(&mut self) -> Result<Segment, String> {
        self.expect('[')?;
        self.depth += 1;
        if self.depth > 16 {
            return Err("nested too deeply".to_owned());
        }
        let step = self.inside()?;
        self.depth -= 1;
        Ok(step)
    }

    fn inside(&mut self) -> Result<Segment, String> {
        if self.eat('?') {
            self.expect('(')?;
            let filter = self.filter()?;
            self.expect(')')?;
            self.expect(']')?;
            return Ok(filter);
        }
        let mut parts = Vec::new();
        loop {
            self.blanks();
            parts.push(match self.peek() {
                Some('\'' | '"') => vec![Segment::Field(self.quoted()?)],
                Some('*') => {
                    self.at += 1;
                    vec![Segment::Any]
                }
                Some(c) if c == '-' || c == ':' || c.is_ascii_digit() => vec![self.index_or_slice()?],
                _ => {
                    let name = self.name(&[]);
                    if name.is_empty() {
                        return Err("empty brackets".to_owned());
                    }
                    vec![Segment::Field(name)]
                }
            });
            self.blanks();
            if !self.eat(',') {
                break;
            }
        }
        self.expect(']')?;
        match (parts.len(), parts.pop()) {
            (1, Some(mut only)) => only.pop().ok_or_else(|| "empty brackets".to_owned()),
            (_, last) => {
                parts.extend(last);
                Ok(Segment::Union(parts))
            }
        }
    }

    fn quoted(&mut self) -> Result<String, String> {
        let Some(quote) = self.peek() else { return Err("unterminated string".to_owned()) };
        self.at += 1;
        let mut out = String::new();
        while let Some(c) = self.peek() {
            self.at += 1;
            if c == quote {
                return Ok(out);
            }
            if c == '\\' {
                match self.peek() {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some(other) => out.push(other),
                    None => break,
                }
                self.at += 1;
                continue;
            }
            out.push(c);
        }
        Err("unterminated string".to_owned())
    }

    fn number(&mut self) -> Result<Option<i64>, String> {
        let start = self.at;
        self.eat('-');
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let text: String = self.chars[start..self.at].iter().collect();
        if text.is_empty() {
            Ok(None)
        } else {
            text.parse().map(Some).map_err(|_| format!("{text:?} is not an index"))
        }
    }

    fn index_or_slice(&mut self) -> Result<Segment, String> {
        let from = self.number()?;
        if !self.eat(':') {
            return from.map(Segment::Index).ok_or_else(|| "missing index".to_owned());
        }
        let to = self.number()?;
        let step = if self.eat(':') { self.number()?.unwrap_or(1) } else { 1 };
        if step <= 0 { Err("step must be > 0".to_owned()) } else { Ok(Segment::Slice { from, to, step }) }
    }

    fn filter(&mut self) -> Result<Segment, String> {
        let left = self.operand()?;
        self.blanks();
        let comparison = match (self.peek(), self.chars.get(self.at + 1)) {
            (Some('='), Some('=')) => Some((Comparison::Equal, 2)),
            (Some('!'), Some('=')) => Some((Comparison::NotEqual, 2)),
            (Some('<'), Some('=')) => Some((Comparison::LessEqual, 2)),
            (Some('>'), Some('=')) => Some((Comparison::GreaterEqual, 2)),
            (Some('<'), _) => Some((Comparison::Less, 1)),
            (Some('>'), _) => Some((Comparison::Greater, 1)),
            (Some(')'), _) => None,
            (other, _) => return Err(format!("unexpected {other:?} in a filter")),
        };
        let Some((operator, length)) = comparison else {
            return Ok(Segment::Filter { left, operator: None, right: Operand::Constant(Value::Null) });
        };
        self.at += length;
        self.blanks();
        let right = self.operand()?;
        self.blanks();
        Ok(Segment::Filter { left, operator: Some(operator), right })
    }

    fn operand(&mut self) -> Result<Operand, String> {
        self.blanks();
        match self.peek() {
            Some('\'' | '"') => self.quoted().map(|s| Operand::Constant(Value::from(s))),
            Some('@' | '$' | '.') => {
                self.depth += 1;
                if self.depth > 16 {
                    return Err("nested too deeply".to_owned());
                }
                let segments = self.segments(&['=', '!', '<', '>', ')'])?;
                self.depth -= 1;
                Ok(Operand::Path(segments))
            }
            _ => {
                let mut text = String::new();
                while let Some(c) =
                    self.peek().filter(|c| !c.is_whitespace() && !matches!(c, ')' | '=' | '!' | '<' | '>'))
                {
                    text.push(c);
                    self.at += 1;
                }
                match serde_json::from_str::<Value>(&text) {
                    Ok(value @ (Value::Bool(_) | Value::Number(_))) => Ok(Operand::Constant(value)),
                    _ => Err(format!("{text:?} is not a value")),
                }
            }
        }
    }
}

fn walk<'v>(segments: &[Segment], values: Vec<&'v Value>) -> Result<Vec<&'v Value>, String> {
    let mut values = values;
    for step in segments {
        let mut found = Vec::new();
        for value in &values {
            select(step, value, &mut found)?;
            if found.len() > FOUND_MAX {
                return Err(format!("matches more than {FOUND_MAX} values"));
            }
        }
        values = found;
    }
    Ok(values)
}

fn select<'v>(step: &Segment, value: &'v Value, found: &mut Vec<&'v Value>) -> Result<(), String> {
    match step {
        Segment::Field(name) => found.extend(value.as_object().and_then(|m| m.get(name))),
        Segment::Any => match value {
            Value::Array(items) => found.extend(items),
            Value::Object(map) => found.extend(map.values()),
            _ => {}
        },
        Segment::Descend => descend(value, found),
        Segment::Union(parts) => {
            for part in parts {
                found.extend(walk(part, vec![value])?);
            }
        }
        Segment::Index(index) => {
            let Some(items) = list(value)? else { return Ok(()) };
            let at = if *index < 0 { index + items.len() as i64 } else { *index };
            let item = usize::try_from(at).ok().and_then(|i| items.get(i));
            found.push(item.ok_or_else(|| {
                format!("array index out of bounds: index {index}, length {}", items.len())
            })?);
        }
        Segment::Slice { from, to, step } => {
            let Some(items) = list(value)? else { return Ok(()) };
            let length = items.len() as i64;
            let resolve =
                |n: Option<i64>, default: i64| n.map_or(default, |n| if n < 0 { n + length } else { n });
            let (from, to) = (resolve(*from, 0), resolve(*to, length));
            if from == to {
                return Ok(());
            }
            if from < 0 || from >= length || to < 0 || to > length || from > to {
                return Err(format!("array index out of bounds: index {from}, length {length}"));
            }
            found.extend(
                items[from as usize..to as usize].iter().step_by(usize::try_from(*step).unwrap_or(1)),
            );
        }
        Segment::Filter { left, operator, right } => {
            let Value::Array(items) = value else {
                return Err("is not array or slice and cannot be filtered".to_owned());
            };
            for item in items {
                if passes(item, left, *operator, right)? {
                    found.push(item);
                }
            }
        }
    }
    Ok(())
}

fn list(value: &Value) -> Result<Option<&[Value]>, String> {
    match value {
        Value::Array(items) => Ok(Some(items)),
        Value::Null => Ok(None),
        _ => Err("is not array or slice".to_owned()),
    }
}

fn descend<'v>(value: &'v Value, found: &mut Vec<&'v Value>) {
    if found.len() > FOUND_MAX {
        return;
    }
    match value {
        Value::Array(items) if !items.is_empty() => {
            found.push(value);
            items.iter().for_each(|v| descend(v, found));
        }
        Value::Object(map) if !map.is_empty() => {
            found.push(value);
            map.values().for_each(|v| descend(v, found));
        }
        _ => {}
    }
}

fn passes(
    item: &Value,
    left: &Operand,
    operator: Option<Comparison>,
    right: &Operand,
) -> Result<bool, String> {
    fn one<'a>(item: &'a Value, operand: &'a Operand) -> Result<Option<&'a Value>, String> {
        match operand {
            Operand::Constant(value) => Ok(Some(value)),
            Operand::Path(segments) => match walk(segments, vec![item])?.as_slice() {
                [] => Ok(None),
                [only] => Ok(Some(only)),
                _ => Err("can only compare one element at a time".to_owned()),
            },
        }
    }
    let Some(operator) = operator else {
        return Ok(match left {
            Operand::Path(segments) => walk(segments, vec![item]).is_ok_and(|f| !f.is_empty()),
            Operand::Constant(_) => true,
        });
    };
    let (Some(left), Some(right)) = (one(item, left)?, one(item, right)?) else { return Ok(false) };
    let order = match (left, right) {
        (Value::Number(l), Value::Number(r)) => {
            l.as_f64().unwrap_or_default().partial_cmp(&r.as_f64().unwrap_or_default())
        }
        (Value::String(l), Value::String(r)) => Some(l.cmp(r)),
        (Value::Bool(l), Value::Bool(r)) => Some(l.cmp(r)),
        _ => return Err("incompatible types for comparison".to_owned()),
    };
    let Some(order) = order else { return Ok(false) };
    Ok(match operator {
        Comparison::Equal => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterEqual => order.is_ge(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn object() -> Value {
        json!({
            "spec": {"size": 3, "a.b": "dotted", "list": [{"n": 1}, {"n": 2}, {"n": 3}]},
            "status": {"conditions": [{"type": "Ready", "status": "True", "w": 1}, {"type": "Other", "status": "False", "w": 5}]},
        })
    }

    fn found(path: &str) -> Value {
        match JsonPath::parse(path).unwrap().find(&object()) {
            Ok(values) => Value::from(values.into_iter().cloned().collect::<Vec<_>>()),
            Err(why) => Value::from(why),
        }
    }

    #[test]
    fn paths_match_as_in_kubectl() {
        let cases = [
            (".spec.size", json!([3])),
            ("{.spec.size}", json!([3])),
            ("$.spec.size", json!([3])),
            (".spec.none.deeper", json!([])),
            (".spec.a\\.b", json!(["dotted"])),
            (".spec['a.b']", json!(["dotted"])),
            (".spec.list[0].n", json!([1])),
            (".spec.list[-1].n", json!([3])),
            (".spec.list[1:].n", json!([2, 3])),
            (".spec.list[:2].n", json!([1, 2])),
            (".spec.list[0:3:2].n", json!([1, 3])),
            (".spec.list[*].n", json!([1, 2, 3])),
            (".spec.list[0,2].n", json!([1, 3])),
            ("..n", json!([1, 2, 3])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type=='Ready')].status", json!(["True"])),
            (".status.conditions[?(@.w > 2)].type", json!(["Other"])),
            (".status.conditions[?(@.w)].type", json!(["Ready", "Other"])),
            (".status.conditions[?(@.none)].type", json!([])),
            (".status.conditions[?(@.type != \"Ready\")].status", json!(["False"])),
            (".spec.list[9].n", json!("array index out of bounds: index 9, length 3")),
            (".spec[?(@.x==1)]", json!("is not array or slice and cannot be filtered")),
            (".status.conditions[?(@.w == \"1\")].type", json!("incompatible types for comparison")),
        ];
        for (path, expected) in cases {
            assert_eq!(found(path), expected, "{path}");
        }
    }

    #[test]
    fn invalid_paths_are_rejected() {
        for path in [".a[", ".a[]", ".a[?(@.b==)]", ".a['b", ".a[1:2:0]", ".a]", ".a[?(@.b=\"x\")]", ".."] {
            let parsed = JsonPath::parse(path);
            assert!(parsed.is_err() || path == "..", "{path}: {parsed:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(path in "[.\\[\\]a-c0-9'\"?@()=!<>*:,\\\\{}$ -]{0,40}") {
            if let Ok(path) = JsonPath::parse(&path) {
                let _ = path.find(&object());
            }
        }
    }
}
