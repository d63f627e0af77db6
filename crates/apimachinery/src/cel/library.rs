//! Functions of the Kubernetes CEL libraries, called through `kube-cel`.
//!
//! A call binds the arguments to variables and evaluates a single call expression with the library's own
//! evaluator. A panic of the library becomes an evaluation error.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{CallExpr, Expr, operators};
use kube_cel::cel::{self, Context, ExecutionError, IdedExpr};

use super::eval::{EvalError, shown};
use super::value::Val;

thread_local! {
    /// The registered functions, once per thread: the registry is not `Sync`.
    static REGISTRY: RefCell<Context<'static>> = RefCell::new(Context::default().with_all());
}

const NAMES: [&str; 8] = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"];

fn expr(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

/// Calls a function: `target.name(args)`, or `name(args)` without a target. A name with a dot is a namespaced
/// function, e.g. `math.greatest`.
pub(crate) fn call<'a>(name: &str, target: Option<&Val<'a>>, args: &[Val<'a>]) -> Result<Val<'a>, EvalError> {
    let no_overload = || EvalError::NoOverload;
    if args.len() > NAMES.len() {
        return Err(no_overload());
    }
    let values: Vec<cel::Value> =
        args.iter().map(Val::to_foreign).collect::<Option<_>>().ok_or_else(no_overload)?;
    let receiver = target.map(|t| t.to_foreign().ok_or_else(no_overload)).transpose()?;
    let names = NAMES.iter().take(args.len()).map(|n| expr(Expr::Ident((*n).to_owned()))).collect();
    let (namespace, function) = match name.split_once('.') {
        Some((namespace, function)) => (Some(namespace), function),
        None => (None, name),
    };
    let receiver_expr = match (&receiver, namespace) {
        (Some(_), _) => Some(Box::new(expr(Expr::Ident("receiver".to_owned())))),
        (None, Some(namespace)) => Some(Box::new(expr(Expr::Ident(namespace.to_owned())))),
        (None, None) => None,
    };
    let call =
        expr(Expr::Call(CallExpr { func_name: function.to_owned(), target: receiver_expr, args: names }));
    let result = REGISTRY.with_borrow(|functions| {
        catch_unwind(AssertUnwindSafe(|| {
            let mut scope = functions.new_inner_scope();
            for (name, value) in NAMES.iter().zip(values) {
                scope.add_variable_from_value(*name, value);
            }
            if let Some(receiver) = receiver {
                scope.add_variable_from_value("receiver", receiver);
            }
            cel::Value::resolve(&call, &scope)
        }))
    });
    match result {
        Ok(Ok(value)) => Ok(Val::from_foreign(value)),
        Ok(Err(error)) => Err(translate(error)),
        Err(_) => Err(EvalError::Other(format!("failed to evaluate {name}"))),
    }
}

fn translate(error: ExecutionError) -> EvalError {
    match error {
        ExecutionError::NoSuchKey(key) => EvalError::NoSuchKey(shown(&key).to_owned()),
        ExecutionError::DivisionByZero(_) => EvalError::Other("division by zero".to_owned()),
        ExecutionError::RemainderByZero(_) => EvalError::Other("modulus by zero".to_owned()),
        ExecutionError::Overflow(..) => EvalError::Other("integer overflow".to_owned()),
        ExecutionError::FunctionError { message, .. } => EvalError::Other(shown(&message).to_owned()),
        ExecutionError::UndeclaredReference(name) => {
            EvalError::Other(format!("undeclared reference to '{name}'"))
        }
        _ => EvalError::NoOverload,
    }
}

/// The return type of a function, for the type checker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReturnType {
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Time,
    Duration,
    Type,
    /// A list of strings.
    Texts,
    /// The type of the receiver, or of the first argument without a receiver.
    Receiver,
    /// An element of the receiver or first argument.
    Element,
    /// An optional element.
    MaybeElement,
    /// A named library type.
    Named(&'static str),
    /// Known only at run time.
    Anything,
}

/// How large the result of a function may become, see [`output_size`](super::cost::output_size).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// A number, a boolean, a timestamp, an address or a short text.
    Short,
    /// At most the receiver, or the first argument without a receiver.
    First,
    /// At most all arguments together.
    All,
    /// At most this number of bytes per byte of the arguments.
    Text(u64),
    /// The parameters of a URL.
    Query,
    /// The messages of a format: some for every part of the text between dots.
    Messages,
    /// As many values as the argument says.
    Range,
    /// `replace`, `split`, `join` and `format`: computed from the arguments.
    Replace,
    Split,
    Join,
    Format,
}

/// The functions that expressions may call. A function of the library that is not listed here cannot be
/// called.
pub(crate) const FUNCTIONS: &[(&str, ReturnType, Growth)] = &[
    ("size", ReturnType::Int, Growth::Short),
    ("indexOf", ReturnType::Int, Growth::Short),
    ("lastIndexOf", ReturnType::Int, Growth::Short),
    ("getFullYear", ReturnType::Int, Growth::Short),
    ("getMonth", ReturnType::Int, Growth::Short),
    ("getDayOfYear", ReturnType::Int, Growth::Short),
    ("getDayOfMonth", ReturnType::Int, Growth::Short),
    ("getDate", ReturnType::Int, Growth::Short),
    ("getDayOfWeek", ReturnType::Int, Growth::Short),
    ("getHours", ReturnType::Int, Growth::Short),
    ("getMinutes", ReturnType::Int, Growth::Short),
    ("getSeconds", ReturnType::Int, Growth::Short),
    ("getMilliseconds", ReturnType::Int, Growth::Short),
    ("int", ReturnType::Int, Growth::Short),
    ("asInteger", ReturnType::Int, Growth::Short),
    ("compareTo", ReturnType::Int, Growth::Short),
    ("prefixLength", ReturnType::Int, Growth::Short),
    ("family", ReturnType::Int, Growth::Short),
    ("major", ReturnType::Int, Growth::Short),
    ("minor", ReturnType::Int, Growth::Short),
    ("patch", ReturnType::Int, Growth::Short),
    ("contains", ReturnType::Bool, Growth::Short),
    ("startsWith", ReturnType::Bool, Growth::Short),
    ("endsWith", ReturnType::Bool, Growth::Short),
    ("matches", ReturnType::Bool, Growth::Short),
    ("bool", ReturnType::Bool, Growth::Short),
    ("isSorted", ReturnType::Bool, Growth::Short),
    ("isURL", ReturnType::Bool, Growth::Short),
    ("isIP", ReturnType::Bool, Growth::Short),
    ("isCIDR", ReturnType::Bool, Growth::Short),
    ("isQuantity", ReturnType::Bool, Growth::Short),
    ("isSemver", ReturnType::Bool, Growth::Short),
    ("isInteger", ReturnType::Bool, Growth::Short),
    ("isGreaterThan", ReturnType::Bool, Growth::Short),
    ("isLessThan", ReturnType::Bool, Growth::Short),
    ("containsIP", ReturnType::Bool, Growth::Short),
    ("containsCIDR", ReturnType::Bool, Growth::Short),
    ("isUnspecified", ReturnType::Bool, Growth::Short),
    ("isLoopback", ReturnType::Bool, Growth::Short),
    ("isLinkLocalMulticast", ReturnType::Bool, Growth::Short),
    ("isLinkLocalUnicast", ReturnType::Bool, Growth::Short),
    ("isGlobalUnicast", ReturnType::Bool, Growth::Short),
    ("ip.isCanonical", ReturnType::Bool, Growth::Short),
    ("sets.contains", ReturnType::Bool, Growth::Short),
    ("sets.equivalent", ReturnType::Bool, Growth::Short),
    ("sets.intersects", ReturnType::Bool, Growth::Short),
    ("hasValue", ReturnType::Bool, Growth::Short),
    ("string", ReturnType::Text, Growth::Text(3)),
    ("charAt", ReturnType::Text, Growth::First),
    ("lowerAscii", ReturnType::Text, Growth::First),
    ("upperAscii", ReturnType::Text, Growth::First),
    ("replace", ReturnType::Text, Growth::Replace),
    ("substring", ReturnType::Text, Growth::First),
    ("trim", ReturnType::Text, Growth::First),
    ("join", ReturnType::Text, Growth::Join),
    ("format", ReturnType::Text, Growth::Format),
    ("find", ReturnType::Text, Growth::First),
    ("getScheme", ReturnType::Text, Growth::First),
    ("getHost", ReturnType::Text, Growth::First),
    ("getHostname", ReturnType::Text, Growth::First),
    ("getPort", ReturnType::Text, Growth::First),
    ("getEscapedPath", ReturnType::Text, Growth::First),
    ("strings.quote", ReturnType::Text, Growth::Text(2)),
    ("dyn", ReturnType::Anything, Growth::First),
    ("getQuery", ReturnType::Anything, Growth::Query),
    ("flatten", ReturnType::Anything, Growth::First),
    ("lists.range", ReturnType::Anything, Growth::Range),
    ("optional.of", ReturnType::Anything, Growth::First),
    ("optional.none", ReturnType::Anything, Growth::Short),
    ("optional.ofNonZeroValue", ReturnType::Anything, Growth::First),
    ("or", ReturnType::Anything, Growth::All),
    ("orValue", ReturnType::Anything, Growth::All),
    ("value", ReturnType::Anything, Growth::First),
    ("optMap", ReturnType::Anything, Growth::All),
    ("optFlatMap", ReturnType::Anything, Growth::All),
    ("format.named", ReturnType::Anything, Growth::Short),
    ("validate", ReturnType::Anything, Growth::Messages),
    ("format.byte", ReturnType::Anything, Growth::Short),
    ("format.date", ReturnType::Anything, Growth::Short),
    ("format.datetime", ReturnType::Anything, Growth::Short),
    ("format.dns1035Label", ReturnType::Anything, Growth::Short),
    ("format.dns1035LabelPrefix", ReturnType::Anything, Growth::Short),
    ("format.dns1123Label", ReturnType::Anything, Growth::Short),
    ("format.dns1123LabelPrefix", ReturnType::Anything, Growth::Short),
    ("format.dns1123Subdomain", ReturnType::Anything, Growth::Short),
    ("format.dns1123SubdomainPrefix", ReturnType::Anything, Growth::Short),
    ("format.labelValue", ReturnType::Anything, Growth::Short),
    ("format.qualifiedName", ReturnType::Anything, Growth::Short),
    ("format.uri", ReturnType::Anything, Growth::Short),
    ("format.uuid", ReturnType::Anything, Growth::Short),
    ("uint", ReturnType::Uint, Growth::Short),
    ("double", ReturnType::Double, Growth::Short),
    ("asApproximateFloat", ReturnType::Double, Growth::Short),
    ("split", ReturnType::Texts, Growth::Split),
    ("findAll", ReturnType::Texts, Growth::First),
    ("bytes", ReturnType::Bytes, Growth::First),
    ("timestamp", ReturnType::Time, Growth::Short),
    ("duration", ReturnType::Duration, Growth::Short),
    ("type", ReturnType::Type, Growth::Short),
    ("distinct", ReturnType::Receiver, Growth::First),
    ("reverse", ReturnType::Receiver, Growth::First),
    ("sort", ReturnType::Receiver, Growth::First),
    ("slice", ReturnType::Receiver, Growth::First),
    ("add", ReturnType::Receiver, Growth::Short),
    ("sub", ReturnType::Receiver, Growth::Short),
    ("masked", ReturnType::Receiver, Growth::Short),
    ("min", ReturnType::Element, Growth::All),
    ("max", ReturnType::Element, Growth::All),
    ("sum", ReturnType::Element, Growth::First),
    ("first", ReturnType::MaybeElement, Growth::First),
    ("last", ReturnType::MaybeElement, Growth::First),
    ("quantity", ReturnType::Named("kubernetes.Quantity"), Growth::Short),
    ("url", ReturnType::Named("kubernetes.URL"), Growth::Text(6)),
    ("ip", ReturnType::Named("net.IP"), Growth::Short),
    ("cidr", ReturnType::Named("net.CIDR"), Growth::Short),
    ("semver", ReturnType::Named("kubernetes.Semver"), Growth::Text(2)),
];

/// The operators that the library evaluates, on timestamps and durations.
const OPERATORS: &[&str] = &[
    operators::ADD,
    operators::SUBSTRACT,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::NEGATE,
    operators::LOGICAL_NOT,
];

/// The return type of a function; `None` if there is no such function.
pub(crate) fn return_type(name: &str) -> Option<ReturnType> {
    FUNCTIONS.iter().find(|(known, ..)| *known == name).map(|(_, returns, _)| *returns)
}

/// The growth of a function or operator; `None` if it cannot be called.
pub(crate) fn growth(name: &str) -> Option<Growth> {
    let function = FUNCTIONS.iter().find(|(known, ..)| *known == name).map(|(.., growth)| *growth);
    function.or_else(|| OPERATORS.contains(&name).then_some(Growth::Short))
}

/// Whether the name is a namespace of library functions.
pub(crate) fn is_namespace(name: &str) -> bool {
    matches!(
        name,
        "math" | "sets" | "base64" | "strings" | "lists" | "format" | "ip" | "optional" | "jsonpatch"
    )
}
