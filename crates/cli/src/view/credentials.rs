//! The table of `polis credentials list`.

use polis_apiserver::Credential;

use super::table::Table;

/// One line per credential.
pub fn table(credentials: &[Credential], wide: bool) -> Table {
    let mut heads = vec!["SUBJECT", "KIND", "ID", "EXPIRES"];
    if wide {
        heads.extend(["PLANE", "ISSUED"]);
    }
    let mut table = Table::new(&heads, "No credentials found: the server has issued none that is valid.");
    for credential in credentials {
        let mut cells = vec![
            credential.subject.clone(),
            format!("{:?}", credential.kind).to_lowercase(),
            credential.id.clone(),
            credential.expires.clone().unwrap_or_else(|| "with its secret".to_owned()),
        ];
        if wide {
            let plane =
                credential.plane.as_deref().map(|plane| if plane.is_empty() { "platform" } else { plane });
            cells.extend([plane.unwrap_or("all").to_owned(), credential.issued.clone()]);
        }
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use polis_apiserver::CredentialKind;

    use super::*;

    #[test]
    fn a_credential_is_shown_with_its_expiry_and_its_plane() {
        let certificate = Credential {
            subject: "ann".to_owned(),
            kind: CredentialKind::Certificate,
            id: "1f".to_owned(),
            plane: None,
            issued: "2026-01-01T00:00:00Z".to_owned(),
            expires: Some("2026-01-02T00:00:00Z".to_owned()),
        };
        let token = Credential {
            kind: CredentialKind::Token,
            plane: Some(String::new()),
            expires: None,
            ..certificate.clone()
        };
        let shown = table(&[certificate, token], true).draw(None);
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[1],
            ["ann", "certificate", "1f", "2026-01-02T00:00:00Z", "all", "2026-01-01T00:00:00Z"]
        );
        assert_eq!(
            lines[2],
            ["ann", "token", "1f", "with", "its", "secret", "platform", "2026-01-01T00:00:00Z"]
        );
    }
}
