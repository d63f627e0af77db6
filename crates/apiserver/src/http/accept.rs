//! Content negotiation: the `Accept` header of a request.

/// What a response contains of each object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Projection {
    /// The whole object.
    #[default]
    Full,
    /// A `Table` of rows and columns.
    Table,
    /// `PartialObjectMetadata`.
    Metadata,
}

/// The negotiated format of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) projection: Projection,
    /// YAML instead of JSON.
    pub(crate) yaml: bool,
    /// Aggregated discovery.
    pub(crate) aggregated: bool,
}

/// The supported media types, for the message of a 406.
pub(crate) const OFFERED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

impl Output {
    /// The first supported format of an `Accept` header; `None` if there is none.
    ///
    /// Responses are never protobuf: every Kubernetes client that accepts protobuf also accepts JSON.
    pub(crate) fn negotiate(accept: Option<&str>) -> Option<Self> {
        let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else {
            return Some(Self::default());
        };
        accept.split(',').find_map(Self::clause)
    }

    fn clause(clause: &str) -> Option<Self> {
        let mut parts = clause.split(';').map(str::trim);
        let media = parts.next()?.to_ascii_lowercase();
        let yaml = match media.as_str() {
            "application/json" | "*/*" | "application/*" => false,
            "application/yaml" | "application/x-yaml" | "text/yaml" => true,
            _ => return None,
        };
        let (mut kind, mut group, mut version) = ("", "", "");
        for part in parts {
            match part.split_once('=').map(|(name, value)| (name.trim(), value.trim())) {
                Some(("as", value)) => kind = value,
                Some(("g", value)) => group = value,
                Some(("v", value)) => version = value,
                _ => {}
            }
        }
        let projection = match (kind, group, version) {
            ("", ..) => Projection::Full,
            ("Table", "meta.k8s.io", "v1" | "v1beta1") => Projection::Table,
            ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1" | "v1beta1") => {
                Projection::Metadata
            }
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => {
                return Some(Self { aggregated: true, yaml, projection: Projection::Full });
            }
            _ => return None,
        };
        Some(Self { projection, yaml, aggregated: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_supported_format_is_chosen() {
        let table = Output::negotiate(Some("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"))
            .expect("acceptable");
        assert_eq!(table.projection, Projection::Table);
        let fallback = Output::negotiate(Some("application/vnd.kubernetes.protobuf,application/json"))
            .expect("acceptable");
        assert_eq!(fallback, Output::default());
        let discovery = Output::negotiate(Some(
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json",
        ))
        .expect("acceptable");
        assert!(discovery.aggregated);
        assert_eq!(Output::negotiate(None), Some(Output::default()));
        assert_eq!(Output::negotiate(Some("image/png")), None);
    }
}
