//! Functions of the Kubernetes libraries, called through `kube-cel`.
//!
//! The crate brings the functions; evaluation is ours, because it must be counted and must not panic. A call is made by
//! binding the arguments to names and evaluating the one call over them. Whatever the library panics on becomes an error.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{CallExpr, Expr};
use kube_cel::cel::{self, Context, ExecutionError, IdedExpr};

use super::eval::EvalError;
use super::value::Val;

thread_local! {
    /// The functions, registered once per thread: the registry cannot be shared between threads.
    static FUNCTIONS: RefCell<Context<'static>> = RefCell::new(Context::default().with_all());
}

const NAMES: [&str; 8] = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"];

fn expr(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

/// Calls a function, `target.name(args)` with a target and `name(args)` without. A name with a dot is a function of a
/// library's namespace, e.g. `math.greatest`.
pub(crate) fn call<'a>(name: &str, target: Option<&Val<'a>>, args: &[Val<'a>]) -> Result<Val<'a>, EvalError> {
    let unfit = || EvalError::NoOverload;
    if args.len() > NAMES.len() {
        return Err(unfit());
    }
    let values: Vec<cel::Value> =
        args.iter().map(Val::to_foreign).collect::<Option<_>>().ok_or_else(unfit)?;
    let receiver = target.map(|t| t.to_foreign().ok_or_else(unfit)).transpose()?;
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
    let outcome = FUNCTIONS.with_borrow(|functions| {
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
    match outcome {
        Ok(Ok(value)) => Ok(Val::from_foreign(value)),
        Ok(Err(error)) => Err(translate(error)),
        Err(_) => Err(EvalError::Other(format!("failed to evaluate {name}"))),
    }
}

fn translate(error: ExecutionError) -> EvalError {
    match error {
        ExecutionError::NoSuchKey(key) => EvalError::NoSuchKey(key.to_string()),
        ExecutionError::DivisionByZero(_) => EvalError::Other("division by zero".to_owned()),
        ExecutionError::RemainderByZero(_) => EvalError::Other("modulus by zero".to_owned()),
        ExecutionError::Overflow(..) => EvalError::Other("integer overflow".to_owned()),
        ExecutionError::FunctionError { message, .. } => EvalError::Other(message),
        ExecutionError::UndeclaredReference(name) => {
            EvalError::Other(format!("undeclared reference to '{name}'"))
        }
        _ => EvalError::NoOverload,
    }
}

/// What functions return, as far as a check before running needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returns {
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
    /// As the receiver, or the first argument without one.
    Receiver,
    /// An element of the receiver or first argument.
    Element,
    /// An element that may not be there.
    MaybeElement,
    /// A type of a library.
    Named(&'static str),
    /// Something only known when running.
    Anything,
}

/// The functions that exist, by name, and what they return.
pub(crate) fn returns(name: &str) -> Option<Returns> {
    const INTS: &[&str] = &[
        "size",
        "indexOf",
        "lastIndexOf",
        "getFullYear",
        "getMonth",
        "getDayOfYear",
        "getDayOfMonth",
        "getDate",
        "getDayOfWeek",
        "getHours",
        "getMinutes",
        "getSeconds",
        "getMilliseconds",
        "int",
        "asInteger",
        "compareTo",
        "prefixLength",
        "family",
        "major",
        "minor",
        "patch",
    ];
    const BOOLS: &[&str] = &[
        "contains",
        "startsWith",
        "endsWith",
        "matches",
        "bool",
        "isSorted",
        "isURL",
        "isIP",
        "isCIDR",
        "isQuantity",
        "isSemver",
        "isInteger",
        "isGreaterThan",
        "isLessThan",
        "containsIP",
        "containsCIDR",
        "isUnspecified",
        "isLoopback",
        "isLinkLocalMulticast",
        "isLinkLocalUnicast",
        "isGlobalUnicast",
        "ip.isCanonical",
        "sets.contains",
        "sets.equivalent",
        "sets.intersects",
        "hasValue",
    ];
    const TEXTS: &[&str] = &[
        "string",
        "charAt",
        "lowerAscii",
        "upperAscii",
        "replace",
        "substring",
        "trim",
        "join",
        "format",
        "find",
        "getScheme",
        "getHost",
        "getHostname",
        "getPort",
        "getEscapedPath",
        "strings.quote",
    ];
    const OTHERS: &[&str] = &[
        "dyn",
        "getQuery",
        "flatten",
        "lists.range",
        "optional.of",
        "optional.none",
        "optional.ofNonZeroValue",
        "or",
        "orValue",
        "value",
        "optMap",
        "optFlatMap",
        "format.named",
        "validate",
        "format.byte",
        "format.date",
        "format.datetime",
        "format.dns1035Label",
        "format.dns1035LabelPrefix",
        "format.dns1123Label",
        "format.dns1123LabelPrefix",
        "format.dns1123Subdomain",
        "format.dns1123SubdomainPrefix",
        "format.labelValue",
        "format.qualifiedName",
        "format.uri",
        "format.uuid",
    ];
    Some(match name {
        "uint" => Returns::Uint,
        "double" | "asApproximateFloat" => Returns::Double,
        "split" | "findAll" => Returns::Texts,
        "bytes" => Returns::Bytes,
        "timestamp" => Returns::Time,
        "duration" => Returns::Duration,
        "type" => Returns::Type,
        "distinct" | "reverse" | "sort" | "slice" | "add" | "sub" | "masked" => Returns::Receiver,
        "min" | "max" | "sum" => Returns::Element,
        "first" | "last" => Returns::MaybeElement,
        "quantity" => Returns::Named("kubernetes.Quantity"),
        "url" => Returns::Named("kubernetes.URL"),
        "ip" => Returns::Named("net.IP"),
        "cidr" => Returns::Named("net.CIDR"),
        "semver" => Returns::Named("kubernetes.Semver"),
        name if INTS.contains(&name) => Returns::Int,
        name if BOOLS.contains(&name) => Returns::Bool,
        name if TEXTS.contains(&name) => Returns::Text,
        name if OTHERS.contains(&name) => Returns::Anything,
        _ => return None,
    })
}

/// Namespaces of library functions.
pub(crate) fn is_namespace(name: &str) -> bool {
    matches!(
        name,
        "math" | "sets" | "base64" | "strings" | "lists" | "format" | "ip" | "optional" | "jsonpatch"
    )
}
