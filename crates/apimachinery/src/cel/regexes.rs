//! Regular expressions in CEL: `matches`, `find` and `findAll`, bounded in size before they are compiled.
//!
//! The engine takes time proportional to the text times the size of the compiled pattern and never
//! backtracks. The size of a pattern is not the length of its text: `(a{1000}){1000}` has 16 bytes and a
//! million states. So the cost of a search and of a compilation follows from the [`weight`].

use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{Expr, LiteralValue};
use regex::Regex;

use crate::schema::pattern;

/// Maximum weight of a pattern. A DNS name with all its length limits has a weight of 8,000.
const WEIGHT_MAX: u64 = 20_000;
/// Maximum weight of the literal patterns that a program keeps compiled: at least one pattern always fits.
const LITERALS_MAX: u64 = WEIGHT_MAX;

/// A compiled pattern, or why it is invalid.
pub(crate) type Compiled = Result<Arc<Regex>, String>;

/// The number of states of a pattern, roughly: 1 for a character or class, 200 for a Unicode class,
/// multiplied by counted repetitions.
pub(crate) fn weight(pattern: &str) -> u64 {
    const UNICODE: u64 = 200;
    let mut outer: Vec<u64> = Vec::new();
    let (mut group, mut last) = (0_u64, 0_u64);
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        let atom = match c {
            '\\' => match chars.next() {
                Some('p' | 'P') => {
                    if chars.peek() == Some(&'{') {
                        chars.by_ref().find(|c| *c == '}');
                    } else {
                        chars.next();
                    }
                    UNICODE
                }
                // Literal text up to `\E`.
                Some('Q') => {
                    let mut length = 0;
                    while let Some(c) = chars.next() {
                        if c == '\\' && chars.peek() == Some(&'E') {
                            chars.next();
                            break;
                        }
                        length += 1;
                    }
                    length
                }
                _ => 1,
            },
            '[' => {
                let mut class = 1;
                let mut first = true;
                while let Some(c) = chars.next() {
                    match c {
                        ']' if !first => break,
                        '^' if first => continue,
                        '\\' if matches!(chars.next(), Some('p' | 'P')) => class += UNICODE,
                        // A class such as `[:alpha:]` ends with its own bracket.
                        '[' if chars.peek() == Some(&':') => {
                            chars.by_ref().find(|c| *c == ']');
                        }
                        _ => class += u64::from(!c.is_ascii()),
                    }
                    first = false;
                }
                class
            }
            '(' => {
                outer.push(group);
                (group, last) = (0, 0);
                continue;
            }
            ')' => {
                last = group;
                group = outer.pop().unwrap_or(0).saturating_add(group);
                continue;
            }
            '{' => {
                let rest: String = chars.clone().take_while(|c| *c != '}').take(16).collect();
                let bound = |text: &str| text.parse::<u64>().ok();
                let times = match rest.split_once(',') {
                    Some((low, high)) => bound(high).or(bound(low)),
                    None => bound(&rest),
                };
                // A brace that is not a repetition is a character.
                let Some(times) = times else {
                    (group, last) = (group.saturating_add(1), 1);
                    continue;
                };
                chars.by_ref().find(|c| *c == '}');
                group = group.saturating_add(last.saturating_mul(times.saturating_sub(1)));
                last = last.saturating_mul(times.max(1));
                continue;
            }
            '*' | '+' | '?' => continue,
            _ => 1,
        };
        group = group.saturating_add(atom);
        last = atom;
    }
    outer.into_iter().fold(group, u64::saturating_add)
}

/// The cost to compile a pattern of this weight: a unit takes about a microsecond.
pub(crate) fn compile_cost(weight: u64) -> u64 {
    weight.min(WEIGHT_MAX).saturating_mul(2).saturating_add(500)
}

/// Compiles a pattern.
pub(crate) fn compile(pattern: &str) -> Compiled {
    if weight(pattern) > WEIGHT_MAX {
        return Err("expression nests or repeats too much".to_owned());
    }
    pattern::compile_bounded(pattern).map(Arc::new)
}

/// Compiles the patterns that are literals of an expression, up to a total weight. As in Kubernetes, they
/// cost nothing when the expression is evaluated.
pub(super) fn literals(expr: &IdedExpr) -> HashMap<String, Compiled> {
    let mut found = HashMap::new();
    let mut left = LITERALS_MAX;
    super::any(expr, &mut |expr| {
        if let Expr::Call(call) = expr
            && matches!(call.func_name.as_str(), "matches" | "find" | "findAll")
            && let Some(arg) = call.args.get(usize::from(call.target.is_none()))
            && let Expr::Literal(LiteralValue::String(literal)) = &arg.expr
            && !found.contains_key(literal.inner())
            && let Some(rest) = left.checked_sub(weight(literal.inner()))
        {
            left = rest;
            found.insert(literal.inner().to_owned(), compile(literal.inner()));
        }
        false
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weight_multiplies_repetitions() {
        for (pattern, expected) in [
            ("", 0),
            ("abc", 3),
            ("a{3}", 3),
            ("a{2,5}b", 6),
            ("a{7,}", 7),
            ("a{0}b", 2),
            ("(ab){10}", 20),
            ("((a{10}){10}){10}", 1000),
            ("((a|bc){1000}){1000}", 4_000_000),
            ("[a-z]{63}", 63),
            ("[]a]{2}", 2),
            ("[[:alpha:]]{4}", 4),
            ("\\pL{2}", 400),
            ("\\p{L}{2}", 400),
            ("\\Q(\\E{9}", 9),
            ("(aa\\Q)\\E){5}", 15),
            ("a{,5}", 5),
        ] {
            assert_eq!(weight(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn a_pattern_that_expands_too_far_is_not_compiled() {
        for pattern in ["(a{1000}){1000}", "((a{100}){100}){100}", "(\\p{L}{100}){10}"] {
            assert_eq!(compile(pattern).unwrap_err(), "expression nests or repeats too much", "{pattern}");
        }
        assert!(
            compile("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?){0,4}$")
                .is_ok()
        );
    }

    proptest::proptest! {
        #[test]
        fn any_pattern_has_a_weight(pattern in "[a-c\\\\\\[\\]{}()^$.*+?|,:0-9QEpP]{0,32}") {
            let _ = weight(&pattern);
        }
    }
}
