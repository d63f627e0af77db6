//! Parses CEL expressions from untrusted sources.
//!
//! The parser, the type checker and the evaluator recurse, so nesting is bounded twice: in the source text
//! before parsing, and in the syntax tree afterwards.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{EntryExpr, Expr};
use kube_cel::cel::parser::Parser;

use super::point_at;

/// Maximum length of an expression, in bytes.
const SOURCE_MAX: usize = 64 << 10;
/// Maximum nesting of brackets, and maximum number of consecutive unary operators.
const NESTING_MAX: u16 = 96;
/// Maximum number of operators, dots and brackets: each may add a level to the syntax tree.
const OPERATORS_MAX: usize = 4000;
/// Maximum depth of the syntax tree. Kubernetes allows 250; this depth needs a tenth of a thread's stack.
const DEPTH_MAX: usize = 150;
/// Stack size of the parser thread: the parser bounds brackets only and needs about 10 KiB per level.
const STACK: usize = 128 << 20;

/// Parses an expression. The error has the wording of the CEL compiler in Kubernetes.
pub(super) fn parse(source: &str) -> Result<IdedExpr, String> {
    if source.len() > SOURCE_MAX {
        return Err(format!("ERROR: <input>:1:1: expression is longer than {SOURCE_MAX} bytes"));
    }
    if let Some(column) = limit_exceeded_at(source) {
        return Err(point_at(source, 1, column, "expression nests too deeply or is too complex"));
    }
    let parse_safely = || {
        catch_unwind(AssertUnwindSafe(|| parse_and_measure(source)))
            .unwrap_or_else(|_| Err(syntax_error(source)))
    };
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("cel".to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, parse_safely)
            .map_err(|error| format!("failed to start a thread to parse on: {error}"))
            .and_then(|thread| thread.join().unwrap_or_else(|_| Err(syntax_error(source))))
    })
}

fn syntax_error(source: &str) -> String {
    point_at(source, 1, 1, "Syntax error: the expression cannot be parsed")
}

fn parse_and_measure(source: &str) -> Result<IdedExpr, String> {
    let parsed = Parser::new().max_recursion_depth(NESTING_MAX).enable_optional_syntax(true).parse(source);
    let expr = parsed.map_err(|errors| {
        let shown: Vec<String> = errors
            .errors
            .iter()
            .map(|e| {
                let place = |number: isize| usize::try_from(number).unwrap_or(1);
                point_at(source, place(e.pos.0), place(e.pos.1), &e.msg)
            })
            .collect();
        shown.join("\n")
    })?;
    if depth(&expr) > DEPTH_MAX {
        return Err(point_at(source, 1, 1, &format!("expression has more than {DEPTH_MAX} levels")));
    }
    Ok(expr)
}

/// The column at which the source exceeds the limits of brackets, unary operators or operators. Characters
/// inside string literals count too; the limits are far above any realistic expression.
fn limit_exceeded_at(source: &str) -> Option<usize> {
    let (mut open, mut signs, mut operators) = (0_usize, 0_usize, 0_usize);
    for (at, c) in source.chars().enumerate() {
        match c {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            _ => {}
        }
        signs = match c {
            '!' | '-' => signs + 1,
            c if c.is_whitespace() => signs,
            _ => 0,
        };
        operators += usize::from("([{.?:!+-*/%<>=&|,".contains(c));
        if open > usize::from(NESTING_MAX) || signs > usize::from(NESTING_MAX) || operators > OPERATORS_MAX {
            return Some(at + 1);
        }
    }
    None
}

fn depth(expr: &IdedExpr) -> usize {
    let deepest = |parts: &mut dyn Iterator<Item = &IdedExpr>| parts.map(depth).max().unwrap_or(0);
    let entries = |entry: &EntryExpr| match entry {
        EntryExpr::StructField(field) => depth(&field.value),
        EntryExpr::MapEntry(entry) => depth(&entry.key).max(depth(&entry.value)),
    };
    1 + match &expr.expr {
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => 0,
        Expr::Select(select) => depth(&select.operand),
        Expr::Call(call) => deepest(&mut call.args.iter().chain(call.target.as_deref())),
        Expr::List(list) => deepest(&mut list.elements.iter()),
        Expr::Map(map) => map.entries.iter().map(|entry| entries(&entry.expr)).max().unwrap_or(0),
        Expr::Struct(object) => object.entries.iter().map(|entry| entries(&entry.expr)).max().unwrap_or(0),
        Expr::Comprehension(c) => {
            deepest(&mut [&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result].into_iter())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_nested_too_deeply_are_rejected() {
        for source in [
            "(".repeat(5000),
            "!".repeat(5000) + "true",
            format!("a{}", ".a".repeat(1000)),
            format!("1{}", "+1".repeat(1000)),
            format!("{}a{}", "[".repeat(90), "]".repeat(90)) + &".b".repeat(100),
            format!("a{}", " ? b : c".repeat(900)),
            "a".repeat(SOURCE_MAX + 1),
            format!("a{}", "[0]".repeat(1200)),
            format!("a{}", ".map(x, x".repeat(90)),
        ] {
            assert!(parse(&source).is_err(), "{source:.40}");
        }
    }

    #[test]
    fn a_long_but_flat_expression_is_parsed() {
        let source = vec!["self.a == 'x'"; 400].join(" || ");
        assert!(parse(&source).is_ok());
        assert!(parse(&format!("a{}", ".a".repeat(100))).is_ok());
    }
}
