//! Tests of expressions that try to use more time or memory than they may.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::cost::{self, Budget, Extent, MEMORY_MAX};
use super::eval::{Activation, EvalError, Evaluation};
use super::library::FUNCTIONS;
use super::value::{Text, Val};
use super::{EVALUATION_MAX, Program};

/// Evaluates an expression and passes its result on. `big` is a text of 1 MB, `list` a list of 1,000 numbers.
fn evaluated<T>(source: &str, read: impl FnOnce(Result<&Val<'_>, &EvalError>, Budget) -> T) -> T {
    let program = Program::parse(source).unwrap_or_else(|why| panic!("{source}: {why}"));
    let big = "a".repeat(1_000_000);
    let list: Vec<Val<'_>> = (0..1000).map(Val::Int).collect();
    let scope = Activation::new(None, "big", Val::Text(Text::Borrowed(&big)));
    let scope = Activation::new(Some(&scope), "list", Val::list(list));
    let evaluation = Evaluation::new(&program, EVALUATION_MAX, None);
    let result = evaluation.run(&scope);
    read(result.as_ref(), evaluation.used())
}

fn error(source: &str) -> Option<EvalError> {
    evaluated(source, |result, _| result.err().cloned())
}

#[test]
fn a_hostile_expression_is_stopped_before_it_allocates() {
    let many = vec!["0"; 2000].join(", ");
    let expressions = [
        "lists.range(2000000000).size() > 0",
        "lists.range(9223372036854775807).size() > 0",
        "lists.range(400000).size() > 0",
        "big.replace('a', big).size() > 0",
        "big.replace('', big).size() > 0",
        "big.split('').size() > 0",
        "lists.range(1000).map(x, big).join(big).size() > 0",
        "lists.range(1000).map(x, big).join().size() > 0",
        "'%.2000000000f'.format([1.0]).size() > 0",
        "'%.99999999e'.format([1.0]).size() > 0",
        "'%s%s%s%s%s%s%s%s%s%s%s%s'.format([big, big, big, big, big, big, big, big, big, big, big, big]).size() > 0",
        "'%s'.format([list.map(x, list.map(y, big))]).size() > 0",
        "list.all(x, (big + big).size() > 0)",
        "list.map(x, big + string(x)).size() > 0",
        "list.map(x, list.map(y, list.map(z, z))).size() > 0",
        "list.all(x, (list + list + list + list).size() > 0 && [list, list].flatten().size() > 0)",
        "strings.quote(big + big + big + big + big).size() > 0",
        "list.map(x, list).map(x, list).flatten().size() > 0",
        "sets.contains(lists.range(20000), lists.range(20000))",
        "lists.range(20000).distinct().size() > 0",
        "list.transformMap(k, v, big + string(v)).size() > 0",
        "list.map(x, strings.quote(big)).size() > 0",
        "list.map(x, bytes(big)).size() > 0",
        "list.map(x, big.lowerAscii()).size() > 0",
        "list.map(x, big.find('a*')).size() > 0",
        "list.map(x, big.substring(0, 900000)).size() > 0",
        "list.map(x, url('http://h/?' + big)).size() > 0",
        "list.all(x, url('http://h/?' + big).getQuery().size() > 0)",
        "big.findAll('').size() > 0",
        "big.findAll('a').size() > 0",
        "big.findAll('a*b|a').size() > 0",
        "list.all(x, big.indexOf(big) == 0)",
        "list.all(x, big < big || big == big)",
        "list.map(x, list).exists(y, list.map(x, list) == list.map(x, list) && false)",
        "big.matches('(a{1,100}){1,100}b')",
        "list.all(x, list.all(y, 'x'.matches('\\\\p{L}{1,20}' + string(x) + 'b' + string(y)) || true))",
        "list.all(x, list.all(y, 'x'.matches(string(x) + 'a' + string(y)) || true))",
        "format.dns1123Subdomain().validate(big.replace('a', '.')).hasValue()",
        &format!("list.map(x, list.map(y, [{many}])).size() > 0"),
        &format!("list.map(x, b'{}').size() > 0", "a".repeat(60_000)),
    ];
    for expression in expressions {
        let started = Instant::now();
        let error = error(expression);
        assert!(
            error.as_ref().is_some_and(EvalError::is_limit),
            "{expression:.80}: {:?}",
            error.map(|error| error.to_string())
        );
        // Milliseconds each; a hundred times more for a busy machine and a build without optimisation.
        assert!(started.elapsed() < Duration::from_secs(2), "{expression:.80}: {:?}", started.elapsed());
    }
}

#[test]
fn a_pattern_that_expands_too_far_is_an_error() {
    for expression in ["'a'.matches('((a{100}){100}){100}')", "'a'.find('((a{100}){100}){100}') == 'a'"] {
        let error = error(expression).map(|error| error.to_string());
        assert_eq!(
            error.as_deref(),
            Some("error parsing regexp: expression nests or repeats too much"),
            "{expression}"
        );
    }
}

#[test]
fn expressions_of_ordinary_size_are_within_the_limits() {
    for expression in [
        "lists.range(10000).map(x, string(x)).join(',').size() > 0",
        "list.map(x, 'item-' + string(x)).all(s, s.matches('^item-[0-9]+$'))",
        "list.all(x, string(x).matches('^' + string(x) + '$'))",
        "sets.contains(list, [1, 2, 3]) && list.distinct().size() == 1000 && list.sort() == list",
        "big.replace('a', 'b').contains('b') && big.split('b').size() == 1",
        "big == big && big.size() == 1000000 && big.startsWith('aaa')",
        "list.map(x, [x, x + 1]).flatten().size() == 2000",
        "'%s has %d of %.2f'.format([list, 7, 1.5]).size() > 0",
        "big.substring(0, 1000).findAll('aa').size() == 500",
        "list.map(x, {'k': x}).all(m, m.k >= 0)",
    ] {
        evaluated(expression, |result, used| {
            assert!(matches!(result, Ok(Val::Bool(true))), "{expression}: {:?} after {used:?}", result.err());
        });
    }
}

/// Calls of every function: name, whether the first argument is the receiver, arguments.
const CALLS: &[(&str, bool, &[&str])] = &[
    ("size", true, &["'abc'"]),
    ("indexOf", true, &["'abc'", "'c'"]),
    ("lastIndexOf", true, &["[1, 2, 1]", "1"]),
    ("getFullYear", true, &["timestamp('2024-01-02T03:04:05Z')"]),
    ("getMonth", true, &["timestamp('2024-01-02T03:04:05Z')"]),
    ("getDayOfYear", true, &["timestamp('2024-01-02T03:04:05Z')"]),
    ("getDayOfMonth", true, &["timestamp('2024-01-02T03:04:05Z')"]),
    ("getDate", true, &["timestamp('2024-01-02T03:04:05Z')"]),
    ("getDayOfWeek", true, &["timestamp('2024-01-02T03:04:05Z')"]),
    ("getHours", true, &["timestamp('2024-01-02T03:04:05Z')"]),
    ("getMinutes", true, &["timestamp('2024-01-02T03:04:05Z')"]),
    ("getSeconds", true, &["timestamp('2024-01-02T03:04:05Z')"]),
    ("getMilliseconds", true, &["timestamp('2024-01-02T03:04:05Z')"]),
    ("int", false, &["'12'"]),
    ("asInteger", true, &["quantity('5')"]),
    ("compareTo", true, &["quantity('5')", "quantity('6')"]),
    ("prefixLength", true, &["cidr('10.0.0.0/8')"]),
    ("family", true, &["ip('10.0.0.1')"]),
    ("major", true, &["semver('1.2.3')"]),
    ("minor", true, &["semver('1.2.3')"]),
    ("patch", true, &["semver('1.2.3')"]),
    ("contains", true, &["'abc'", "'b'"]),
    ("startsWith", true, &["'abc'", "'a'"]),
    ("endsWith", true, &["'abc'", "'c'"]),
    ("matches", true, &["'abc'", "'b+'"]),
    ("bool", false, &["'true'"]),
    ("isSorted", true, &["[1, 2]"]),
    ("isURL", false, &["'http://a/b'"]),
    ("isIP", false, &["'10.0.0.1'"]),
    ("isCIDR", false, &["'10.0.0.0/8'"]),
    ("isQuantity", false, &["'5Gi'"]),
    ("isSemver", false, &["'1.2.3'"]),
    ("isInteger", true, &["quantity('5')"]),
    ("isGreaterThan", true, &["quantity('5')", "quantity('6')"]),
    ("isLessThan", true, &["semver('1.2.3')", "semver('1.2.4')"]),
    ("containsIP", true, &["cidr('10.0.0.0/8')", "'10.1.1.1'"]),
    ("containsCIDR", true, &["cidr('10.0.0.0/8')", "'10.1.0.0/16'"]),
    ("isUnspecified", true, &["ip('0.0.0.0')"]),
    ("isLoopback", true, &["ip('127.0.0.1')"]),
    ("isLinkLocalMulticast", true, &["ip('224.0.0.1')"]),
    ("isLinkLocalUnicast", true, &["ip('169.254.0.1')"]),
    ("isGlobalUnicast", true, &["ip('10.0.0.1')"]),
    ("ip.isCanonical", false, &["'10.0.0.1'"]),
    ("sets.contains", false, &["[1, 2]", "[1]"]),
    ("sets.equivalent", false, &["[1, 2]", "[2, 1]"]),
    ("sets.intersects", false, &["[1, 2]", "[1]"]),
    ("hasValue", true, &["optional.of(1)"]),
    ("string", false, &["b'\\377\\377\\377'"]),
    ("string", false, &["1234567890.5"]),
    ("string", false, &["timestamp('2024-01-02T03:04:05Z')"]),
    ("string", false, &["duration('100000h1s')"]),
    ("string", true, &["ip('2001:db8::1')"]),
    ("charAt", true, &["'aé'", "1"]),
    ("lowerAscii", true, &["'ABC'"]),
    ("upperAscii", true, &["'abc'"]),
    ("replace", true, &["'banana'", "'an'", "'ANANAN'"]),
    ("replace", true, &["'banana'", "''", "'-----'"]),
    ("replace", true, &["'banana'", "'a'", "'xyz'", "2"]),
    ("replace", true, &["'banana'", "'a'", "''"]),
    ("substring", true, &["'banana'", "2", "4"]),
    ("trim", true, &["' a '"]),
    ("join", true, &["['a', 'bb', 'ccc']", "'--'"]),
    ("join", true, &["['a', 'bb']"]),
    (
        "format",
        true,
        &[
            "'%s %d %b %o %x %X %e %.3f %% %s'",
            "['a', -5, -1, 8, 'zz', b'zz', 1e300, 1e300, [1, ['q', {'k': [true, null, 2u]}]]]",
        ],
    ),
    ("format", true, &["'%s %s %s'", "[duration('5s'), url('http://a:1/b?c#d'), quantity('5Gi')]"]),
    ("format", true, &["'%.200f'", "[1]"]),
    ("find", true, &["'banana'", "'an.*'"]),
    ("getScheme", true, &["url('https://a:80/b')"]),
    ("getHost", true, &["url('https://a:80/b')"]),
    ("getHostname", true, &["url('https://[::1]:80/b')"]),
    ("getPort", true, &["url('https://a:80/b')"]),
    ("getEscapedPath", true, &["url('https://a:80/b c')"]),
    ("strings.quote", false, &["'\"\\n\\t\\\\'"]),
    ("dyn", false, &["[1, 2]"]),
    ("getQuery", true, &["url('https://a/?a&b&c=d&a=e&x=%ff')"]),
    ("flatten", true, &["[[1, [2]], [3]]", "2"]),
    ("lists.range", false, &["100"]),
    ("optional.of", false, &["[1]"]),
    ("optional.none", false, &[]),
    ("optional.ofNonZeroValue", false, &["'a'"]),
    ("or", true, &["optional.none()", "optional.of('abc')"]),
    ("orValue", true, &["optional.none()", "'abc'"]),
    ("value", true, &["optional.of('abc')"]),
    ("format.named", false, &["'uuid'"]),
    ("validate", true, &["format.dns1123Subdomain()", "'-A-.-B-.-C-.-' + 'x'.replace('x', 'D') + '-.-E-'"]),
    ("validate", true, &["format.qualifiedName()", "'-A-.-B-/-_-'"]),
    ("validate", true, &["format.uuid()", "'zz'"]),
    ("format.byte", false, &[]),
    ("format.date", false, &[]),
    ("format.datetime", false, &[]),
    ("format.dns1035Label", false, &[]),
    ("format.dns1035LabelPrefix", false, &[]),
    ("format.dns1123Label", false, &[]),
    ("format.dns1123LabelPrefix", false, &[]),
    ("format.dns1123Subdomain", false, &[]),
    ("format.dns1123SubdomainPrefix", false, &[]),
    ("format.labelValue", false, &[]),
    ("format.qualifiedName", false, &[]),
    ("format.uri", false, &[]),
    ("format.uuid", false, &[]),
    ("uint", false, &["5"]),
    ("double", false, &["'1.5'"]),
    ("asApproximateFloat", true, &["quantity('1.5')"]),
    ("split", true, &["'a,b,c'", "','"]),
    ("split", true, &["'a,b,c'", "','", "2"]),
    ("split", true, &["'abc'", "''"]),
    ("split", true, &["'a,b'", "','", "-1"]),
    ("findAll", true, &["'banana'", "'an'"]),
    ("findAll", true, &["'banana'", "''"]),
    ("bytes", false, &["'aé'"]),
    ("timestamp", false, &["'2024-01-02T03:04:05Z'"]),
    ("duration", false, &["'1h'"]),
    ("type", false, &["1"]),
    ("distinct", true, &["[1, 2, 1]"]),
    ("reverse", true, &["['a', 'bb']"]),
    ("reverse", true, &["'aé'"]),
    ("sort", true, &["['b', 'a']"]),
    ("slice", true, &["[1, 2, 3]", "1", "2"]),
    ("add", true, &["quantity('1Gi')", "quantity('5m')"]),
    ("sub", true, &["quantity('1Gi')", "5"]),
    ("masked", true, &["cidr('10.1.2.3/8')"]),
    ("min", true, &["['b', 'a']"]),
    ("max", true, &["['b', 'aaaa']"]),
    ("sum", true, &["[1, 2]"]),
    ("sum", true, &["['a long text']"]),
    ("first", true, &["['a', 'b']"]),
    ("last", true, &["[[1], [2, 3]]"]),
    ("quantity", false, &["'1Gi'"]),
    ("url", false, &["'http://a/ä b?c d#e'"]),
    ("ip", false, &["'::1'"]),
    ("cidr", false, &["'10.0.0.0/8'"]),
    ("semver", false, &["'1.2.3-a.b+c'"]),
];

/// The result of a call is not larger than predicted.
fn check_prediction(name: &str, receiver: bool, args: &[&str]) {
    let programs: Vec<Program> = args.iter().map(|arg| Program::parse(arg).unwrap()).collect();
    let nothing = Activation::new(None, "nothing", Val::Null);
    let values: Vec<Val<'_>> = programs
        .iter()
        .map(|program| Evaluation::new(program, EVALUATION_MAX, None).run(&nothing).unwrap())
        .collect();
    let inputs: Vec<&Val<'_>> = values.iter().collect();
    let extents: Vec<Extent> = values.iter().map(|value| value.extent(MEMORY_MAX).unwrap()).collect();
    let predicted = cost::output_size(name, &inputs, &extents);
    let source = match (receiver, args) {
        (true, [first, rest @ ..]) => format!("({first}).{name}({})", rest.join(", ")),
        _ => format!("{name}({})", args.join(", ")),
    };
    let program = Program::parse(&source).unwrap();
    let result = Evaluation::new(&program, EVALUATION_MAX, None).run(&nothing);
    let result = result.unwrap_or_else(|error| panic!("{source}: {error}"));
    let (actual, predicted) = (result.extent(MEMORY_MAX).unwrap(), predicted.unwrap());
    // The evaluator charges for every match of a pattern as it finds it.
    let per_match = name == "findAll" && actual.bytes <= predicted.bytes;
    assert!(
        per_match || (actual.nodes <= predicted.nodes && actual.memory() <= predicted.memory()),
        "{source}: {actual:?} is larger than {predicted:?}"
    );
}

#[test]
fn the_size_of_every_function_is_predicted() {
    for (name, ..) in FUNCTIONS {
        // Macros: the evaluator computes their result from the results of their body.
        let is_macro = matches!(*name, "optMap" | "optFlatMap");
        assert!(is_macro || CALLS.iter().any(|(called, ..)| called == name), "no call of {name} is tested");
    }
    for (name, receiver, args) in CALLS {
        check_prediction(name, *receiver, args);
    }
}

#[test]
fn a_function_of_the_library_without_a_prediction_cannot_be_called() {
    for expression in ["base64.encode(b'a') == ''", "math.abs(-1) == 1", "jsonpatch.escapeKey('a') == 'a'"] {
        assert_eq!(error(expression), Some(EvalError::NoOverload), "{expression}");
    }
}

/// Random expressions of functions that return more than they get.
fn growing_text() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("big".to_owned()),
        Just("'%s,%s'".to_owned()),
        Just("'aaaaaaaa'".to_owned()),
        Just("''".to_owned())
    ];
    leaf.prop_recursive(5, 40, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} + {b})")),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| format!("{a}.replace({b}, {c})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}.split({b}).join({b} + {a})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("list.map(x, {a}).join({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}.format([{b}, {a}])")),
            (inner.clone(), 0_u32..2_000_000_000)
                .prop_map(|(a, n)| format!("lists.range({n}).map(x, {a}).join()")),
            inner.clone().prop_map(|a| format!("strings.quote({a})")),
            inner.clone().prop_map(|a| format!("'%s'.format([list.map(x, [{a}, {{'k': {a}}}])])")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}.findAll({b}).join({a})")),
            inner
                .clone()
                .prop_map(|a| format!("[[{a}], [{a}]].map(x, [x, x, x]).flatten().flatten().join()")),
            inner.clone().prop_map(|a| format!("string(bytes({a}))")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn nested_calls_stay_within_the_memory_limit(source in growing_text()) {
        let started = Instant::now();
        let (text, used) = evaluated(&source, |result, used| {
            (result.ok().map(|value| value.extent(u64::MAX).unwrap_or_default().memory()), used)
        });
        if let Some(memory) = text {
            prop_assert!(used.memory <= MEMORY_MAX, "{source}: {used:?}");
            // A text that the object does not have was charged before.
            prop_assert!(memory <= used.memory + (2 << 20), "{source}: {memory} bytes, charged {used:?}");
        }
        prop_assert!(started.elapsed() < Duration::from_secs(5), "{source}: {:?}", started.elapsed());
    }

    #[test]
    fn predictions_hold_for_any_text(
        text in "[a-c,%é]{0,24}", from in "[a-c,]{0,2}", to in "[a-c,é]{0,6}", limit in -2_i64..6,
    ) {
        let (text, from, to, limit) =
            (format!("'{text}'"), format!("'{from}'"), format!("'{to}'"), limit.to_string());
        check_prediction("replace", true, &[&text, &from, &to]);
        check_prediction("replace", true, &[&text, &from, &to, &limit]);
        check_prediction("split", true, &[&text, &from]);
        check_prediction("split", true, &[&text, &from, &limit]);
        check_prediction("join", true, &[&format!("[{text}, {to}, {from}]"), &to]);
        check_prediction("format", true, &["'%s:%x:%s'", &format!("[{text}, {to}, [{from}, {text}]]")]);
        check_prediction("strings.quote", false, &[&text]);
        check_prediction("reverse", true, &[&text]);
    }
}
