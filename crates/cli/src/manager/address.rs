//! Addresses to listen on, as Kubernetes programs write them: `:8081` is port 8081 of every interface.

use std::net::SocketAddr;

use anyhow::{Context, Result};

/// Reads an address.
pub(crate) fn parse(text: &str) -> Result<SocketAddr> {
    let whole = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    whole
        .parse()
        .with_context(|| format!("{text:?} is no address to listen on; write it as :8081 or 127.0.0.1:8081"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_port_means_every_interface() {
        assert_eq!(parse(":8081").unwrap(), "0.0.0.0:8081".parse().unwrap());
    }

    #[test]
    fn an_address_is_taken_as_it_is() {
        assert_eq!(parse("127.0.0.1:0").unwrap(), "127.0.0.1:0".parse().unwrap());
        assert_eq!(parse("[::1]:9").unwrap(), "[::1]:9".parse().unwrap());
    }

    #[test]
    fn what_is_no_address_is_refused_with_how_to_write_one() {
        assert!(parse("8081").unwrap_err().to_string().contains(":8081"));
    }
}
