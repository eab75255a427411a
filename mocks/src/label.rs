//! Text inside a Prometheus label.

/// `value` with the three characters escaped that the text format reserves.
#[must_use]
pub fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
