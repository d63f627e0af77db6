//! The known name that is nearest to a mistyped one, for suggestions in error messages.

/// The nearest of some names; `None` if none is similar. Names differ by a letter or two of which one was
/// mistyped, so at most a third of the letters may differ, and always one.
pub fn name<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = (typed.chars().count() / 3).max(1);
    let distance = |known: &str| strsim::damerau_levenshtein(&typed.to_lowercase(), &known.to_lowercase());
    let scored = known.into_iter().map(|known| (distance(known), known));
    scored.filter(|(distance, _)| *distance <= most).min().map(|(_, known)| known)
}

/// ` (did you mean ord?)`, or nothing.
pub fn hint<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    name(typed, known).map(|known| format!(" (did you mean {known}?)")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_is_found_and_an_unrelated_one_is_not() {
        let known = ["port", "name", "protocol", "image"];
        assert_eq!(name("prot", known), Some("port"));
        assert_eq!(name("protocl", known), Some("protocol"));
        assert_eq!(name("PORT", known), Some("port"), "case does not count");
        assert_eq!(name("replicas", known), None);
        assert_eq!(hint("imag", known), " (did you mean image?)");
        assert_eq!(hint("x", known), "");
    }
}
