//! Cost and memory of CEL calls, known before the call is made.
//!
//! Every call passes [`output_size`] and [`work`] in the evaluator before a function of the library runs. So
//! no function allocates a result that the evaluation may not hold, whatever the function does inside. The
//! factors are those of Kubernetes (`k8s.io/apiserver/pkg/cel/library/cost.go`): 1 per value and a tenth per
//! byte of text. Kubernetes charges for the input of a call; here the result is charged as well, and each
//! evaluation has a limit of memory.

use super::library::{self, Growth};
use super::value::Val;

/// Maximum memory of one evaluation: everything that it computes, whether still in use or not. An expression
/// that stays within its cost limit of 1,000,000 computes at most 10 MB of text, and at most 250,000 values
/// by loops, which take 12 MB. So only a hostile expression, e.g. a loop over long list literals, reaches
/// 16 MiB. A library call copies its arguments and its result about four times, so the process needs up to
/// 64 MiB.
pub(crate) const MEMORY_MAX: u64 = 16 << 20;

/// Maximum depth of lists and maps in each other in a variable. An expression adds its own depth, at most
/// 150, to the depth of the variables that it uses; without a limit a chain of variables would overflow the
/// stack.
pub(crate) const DEPTH_MAX: usize = 100;

/// A limit on the cost and memory of an evaluation, or what it used of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Budget {
    pub(crate) cost: u64,
    pub(crate) memory: u64,
}

/// The extent of a value: the number of values in its tree, and the bytes of their text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) nodes: u64,
    pub(crate) bytes: u64,
}

impl Extent {
    /// Memory of one value: 24 bytes in a list that has doubled its capacity.
    pub(crate) const NODE: u64 = 48;

    /// One value with this number of bytes; 0 for numbers, booleans and containers.
    pub(crate) fn text(bytes: u64) -> Self {
        Self { nodes: 1, bytes }
    }

    /// This number of values without text.
    pub(crate) fn values(nodes: u64) -> Self {
        Self { nodes, bytes: 0 }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { nodes: self.nodes.saturating_add(other.nodes), bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// The cost to traverse or create the value.
    pub(crate) fn cost(self) -> u64 {
        self.nodes.saturating_add(self.bytes.div_ceil(10))
    }

    /// The memory of the value.
    pub(crate) fn memory(self) -> u64 {
        self.nodes.saturating_mul(Self::NODE).saturating_add(self.bytes)
    }
}

/// An upper bound of the result of a function, from its arguments, with the receiver first. `None` if there
/// is no such function, or none for these arguments.
///
/// `inputs` are the extents of the arguments.
pub(crate) fn output_size(name: &str, args: &[&Val<'_>], inputs: &[Extent]) -> Option<Extent> {
    /// Bytes of a number, a timestamp, an address or a short message.
    const SHORT: u64 = 512;
    let first = inputs.first().copied().unwrap_or_default();
    let all = inputs.iter().fold(Extent::default(), |sum, extent| sum.plus(*extent));
    let text = |at: usize| match args.get(at) {
        Some(Val::Text(text)) => Some(&**text),
        _ => None,
    };
    let int = |at: usize| match args.get(at) {
        Some(Val::Int(int)) => Some(*int),
        _ => None,
    };
    Some(match library::growth(name)? {
        Growth::Short => Extent::text(SHORT),
        Growth::First => first.plus(Extent::text(0)),
        Growth::All => all.plus(Extent::text(0)),
        Growth::Text(factor) => Extent::text(all.bytes.saturating_mul(factor).saturating_add(SHORT)),
        // A parameter takes two bytes (`a&`) and becomes a key, a list and a string.
        Growth::Query => Extent {
            nodes: first.bytes.div_ceil(2).saturating_add(1).saturating_mul(3),
            bytes: first.bytes.saturating_mul(3),
        },
        // Up to four messages of at most 80 bytes for every part.
        Growth::Messages => {
            let parts = (text(1)?.matches('.').count() as u64).saturating_add(1);
            Extent { nodes: parts.saturating_mul(4).saturating_add(2), bytes: parts.saturating_mul(320) }
        }
        Growth::Range => Extent::values(u64::try_from(int(0)?).unwrap_or(0).saturating_add(1)),
        Growth::Replace => {
            let (text, from, to) = (text(0)?, text(1)?, text(2)?);
            let limit = int(3).map_or(u64::MAX, |n| u64::try_from(n).unwrap_or(0));
            let found = (text.matches(from).count() as u64).min(limit);
            let added = (to.len() as u64).saturating_sub(from.len() as u64);
            Extent::text((text.len() as u64).saturating_add(found.saturating_mul(added)))
        }
        Growth::Split => {
            let (text, separator) = (text(0)?, text(1)?);
            let limit = int(2).filter(|n| *n >= 0).map_or(u64::MAX, |n| n.unsigned_abs());
            let parts = (text.matches(separator).count() as u64).saturating_add(1).min(limit);
            Extent { nodes: parts.saturating_add(1), bytes: text.len() as u64 }
        }
        Growth::Join => {
            let separator = match args.get(1) {
                Some(_) => text(1)?.len() as u64,
                None => 0,
            };
            let mut bytes = 0_u64;
            for item in args.first()?.items()? {
                let Val::Text(item) = item else { return None };
                bytes = bytes.saturating_add(item.len() as u64).saturating_add(separator);
            }
            Extent::text(bytes)
        }
        Growth::Format => Extent::text(formatted(text(0)?, args.get(1)?)?),
    })
}

/// An upper bound of the bytes that `format` writes. A verb writes its argument once: `%s` adds quotes,
/// commas and brackets, `%x` doubles the bytes, a number takes up to 400 bytes plus the precision.
fn formatted(format: &str, args: &Val<'_>) -> Option<u64> {
    const NUMBER: u64 = 400;
    let mut bytes = format.len() as u64;
    let mut verbs = 0;
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            rest = after;
            continue;
        }
        if let Some(after) = rest.strip_prefix('.') {
            let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            // A precision that is not a number is an error of the function.
            bytes = bytes.saturating_add(after[..digits].parse().unwrap_or(0));
            rest = &after[digits..];
        }
        // Arguments that the format does not use write nothing.
        let extent = args.item(verbs).map_or(Some(Extent::default()), |arg| arg.extent(MEMORY_MAX))?;
        let shown = extent.nodes.saturating_mul(NUMBER).saturating_add(extent.bytes.saturating_mul(2));
        bytes = bytes.saturating_add(shown);
        verbs += 1;
    }
    args.is_list().then_some(bytes)
}

/// The cost of the work of a function beyond reading its arguments and writing its result: functions that
/// compare every element with every other, sort, or search.
pub(crate) fn work(name: &str, args: &[&Val<'_>], inputs: &[Extent]) -> u64 {
    let cost = |at: usize| inputs.get(at).map_or(0, |extent| extent.cost());
    let bytes = |at: usize| inputs.get(at).map_or(0, |extent| extent.bytes);
    let length = args.first().filter(|list| list.is_list()).and_then(|list| list.size()).unwrap_or(0) as u64;
    match name {
        "distinct" => length.div_ceil(10).saturating_mul(cost(0)),
        // `sets.equivalent` compares in both directions.
        "sets.contains" | "sets.intersects" => length.saturating_mul(cost(1)),
        "sets.equivalent" => length.saturating_mul(cost(1)).saturating_mul(2),
        "sort" => cost(0).saturating_mul(u64::from(length.checked_ilog2().unwrap_or(0))),
        "indexOf" | "lastIndexOf" => bytes(0).div_ceil(10).saturating_mul(bytes(1).div_ceil(10)),
        _ => 0,
    }
}
