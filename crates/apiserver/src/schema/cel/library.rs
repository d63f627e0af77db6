//! Functions of the Kubernetes CEL libraries, called through `kube-cel`.
//!
//! A call binds the arguments to variables and evaluates a single call expression with the library's own
//! evaluator. A panic of the library becomes an evaluation error.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{CallExpr, Expr};
use kube_cel::cel::{self, Context, ExecutionError, IdedExpr};

use super::eval::EvalError;
use super::value::Val;

thread_local! {
    /// The registered functions, once per thread: the registry is not `Sync`.
    static FUNCTIONS: RefCell<Context<'static>> = RefCell::new(Context::default().with_all());
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
    let result = FUNCTIONS.with_borrow(|functions| {
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

/// The return type of a function; `None` if there is no such function.
pub(crate) fn return_type(name: &str) -> Option<ReturnType> {
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
        "uint" => ReturnType::Uint,
        "double" | "asApproximateFloat" => ReturnType::Double,
        "split" | "findAll" => ReturnType::Texts,
        "bytes" => ReturnType::Bytes,
        "timestamp" => ReturnType::Time,
        "duration" => ReturnType::Duration,
        "type" => ReturnType::Type,
        "distinct" | "reverse" | "sort" | "slice" | "add" | "sub" | "masked" => ReturnType::Receiver,
        "min" | "max" | "sum" => ReturnType::Element,
        "first" | "last" => ReturnType::MaybeElement,
        "quantity" => ReturnType::Named("kubernetes.Quantity"),
        "url" => ReturnType::Named("kubernetes.URL"),
        "ip" => ReturnType::Named("net.IP"),
        "cidr" => ReturnType::Named("net.CIDR"),
        "semver" => ReturnType::Named("kubernetes.Semver"),
        name if INTS.contains(&name) => ReturnType::Int,
        name if BOOLS.contains(&name) => ReturnType::Bool,
        name if TEXTS.contains(&name) => ReturnType::Text,
        name if OTHERS.contains(&name) => ReturnType::Anything,
        _ => return None,
    })
}

/// Whether the name is a namespace of library functions.
pub(crate) fn is_namespace(name: &str) -> bool {
    matches!(
        name,
        "math" | "sets" | "base64" | "strings" | "lists" | "format" | "ip" | "optional" | "jsonpatch"
    )
}
