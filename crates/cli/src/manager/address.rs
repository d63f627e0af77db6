//! Parses listen addresses in the form of Kubernetes programs: `:8081` is port 8081 of every interface.

use std::net::SocketAddr;

use anyhow::{Context, Result};

/// Parses a listen address.
pub(crate) fn parse(text: &str) -> Result<SocketAddr> {
    let whole = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    whole.parse().with_context(|| {
        format!("{text:?} is not a listen address; use a form such as :8081 or 127.0.0.1:8081")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_without_a_host_is_every_interface() {
        assert_eq!(parse(":8081").unwrap(), "0.0.0.0:8081".parse().unwrap());
    }

    #[test]
    fn an_address_with_a_host_is_unchanged() {
        assert_eq!(parse("127.0.0.1:0").unwrap(), "127.0.0.1:0".parse().unwrap());
        assert_eq!(parse("[::1]:9").unwrap(), "[::1]:9".parse().unwrap());
    }

    #[test]
    fn the_error_about_an_invalid_address_has_an_example() {
        assert!(parse("8081").unwrap_err().to_string().contains(":8081"));
    }
}
