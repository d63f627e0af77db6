//! Validation of the SSH keys of a virtual machine: one `user:key` per line, the key as in OpenSSH's
//! `authorized_keys`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{FieldError, Path};

/// The key types of OpenSSH, and the number of fields of the encoded key after the type.
const TYPES: [(&str, usize); 8] = [
    ("ssh-ed25519", 1),
    ("ssh-rsa", 2),
    ("ssh-dss", 4),
    ("ecdsa-sha2-nistp256", 2),
    ("ecdsa-sha2-nistp384", 2),
    ("ecdsa-sha2-nistp521", 2),
    ("sk-ssh-ed25519@openssh.com", 2),
    ("sk-ecdsa-sha2-nistp256@openssh.com", 3),
];

/// Checks that every line has a user and a key.
pub(super) fn check(lines: &str, at: &Path, errors: &mut Vec<FieldError>) {
    for (index, line) in lines.trim().lines().enumerate() {
        check_line(line.trim(), &at.index(index), errors);
    }
    if lines.trim().is_empty() {
        check_line("", &at.index(0), errors);
    }
}

fn check_line(line: &str, at: &Path, errors: &mut Vec<FieldError>) {
    let Some((user, key)) = line.split_once(':') else {
        return errors.push(at.invalid(line, "must be a user, ':' and a public key"));
    };
    if user.is_empty() {
        errors.push(at.required("the user before ':' is missing"));
    }
    if !is_authorized_key(key.trim()) {
        errors.push(at.invalid(key, "must be a public key as in OpenSSH's authorized_keys"));
    }
}

/// Whether a line has the form `[options] type base64 [comment]`.
fn is_authorized_key(line: &str) -> bool {
    is_key(line) || after_options(line).is_some_and(is_key)
}

fn is_key(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace();
    let (Some(name), Some(encoded)) = (words.next(), words.next()) else { return false };
    let Some((_, fields)) = TYPES.iter().find(|(known, _)| *known == name) else { return false };
    STANDARD.decode(encoded).is_ok_and(|blob| has_fields(&blob, name, *fields))
}

/// Whether an encoded key consists of its type and this number of fields, each with a length prefix.
fn has_fields(blob: &[u8], name: &str, fields: usize) -> bool {
    let mut rest = blob;
    let mut next = || -> Option<&[u8]> {
        let (length, tail) = rest.split_first_chunk::<4>()?;
        let field = tail.get(..u32::from_be_bytes(*length) as usize)?;
        rest = &tail[field.len()..];
        Some(field)
    };
    let named = next() == Some(name.as_bytes());
    let whole = (0..fields).all(|_| next().is_some_and(|field| !field.is_empty()));
    named && whole && rest.is_empty()
}

/// The rest of a line after its options, which end at the first space outside quotes.
fn after_options(line: &str) -> Option<&str> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, character) in line.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ' ' | '\t' if !quoted => return Some(line[at..].trim_start()),
            _ => {}
        }
    }
    None
}

/// An ed25519 key, encoded as OpenSSH does.
#[cfg(test)]
pub(super) fn mk_key() -> String {
    let field = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
    let blob = [field(b"ssh-ed25519"), field(&[7; 32])].concat();
    format!("ssh-ed25519 {}", STANDARD.encode(blob))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors_of(lines: &str) -> Vec<String> {
        let mut errors = Vec::new();
        check(lines, &Path::new("keys"), &mut errors);
        errors.into_iter().map(|error| format!("{} {}", error.path, error.kind.reason())).collect()
    }

    #[test]
    fn a_user_and_a_key_per_line_are_accepted() {
        let key = mk_key();
        let none: [&str; 0] = [];
        assert_eq!(errors_of(&format!("ada:{key}")), none);
        assert_eq!(errors_of(&format!("ada:{key} ada@home\nbob: {key}\n")), none);
        assert_eq!(errors_of(&format!("ada:no-pty,command=\"echo \\\" hi\" {key}")), none);
    }

    #[test]
    fn every_invalid_line_is_reported() {
        let key = mk_key();
        assert_eq!(
            errors_of(&format!("ada\n:{key}\nada:{key}\nada:ssh-rsa AAAA")),
            ["keys[0] FieldValueInvalid", "keys[1] FieldValueRequired", "keys[3] FieldValueInvalid"]
        );
        assert_eq!(errors_of(" \n "), ["keys[0] FieldValueInvalid"]);
    }

    #[test]
    fn a_malformed_key_is_rejected() {
        let key = mk_key();
        let (_, encoded) = key.split_once(' ').unwrap();
        for malformed in [
            "",
            "ssh-ed25519",
            "ssh-ed25519 !!!!",
            &format!("ssh-rsa {encoded}"),
            &format!("ssh-unheard {encoded}"),
            &format!("ssh-ed25519 {}", &encoded[..encoded.len() - 4]),
            &format!("\"no-end {key}"),
            encoded,
        ] {
            assert!(!is_authorized_key(malformed), "{malformed}");
        }
    }
}
