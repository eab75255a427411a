//! Canonical JSON and BLAKE3 digests: equal values give equal bytes on every machine.

use serde::Serialize;
use serde_json::Value;

/// JSON with object keys sorted at every depth and no spaces. Equal values give equal text whatever the order in
/// which their fields were declared or inserted.
///
/// # Panics
/// Never for the types of this project: their serialisation is total (no non-string keys, no failing impls).
#[must_use]
pub fn canonical_json<T: Serialize + ?Sized>(value: &T) -> String {
    let value = serde_json::to_value(value).expect("contract types serialise without failing");
    let mut out = String::new();
    write_canonical(&value, &mut out);
    out
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_unstable();
            out.push('{');
            for (position, key) in keys.into_iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                out.push_str(&Value::String(key.clone()).to_string());
                out.push(':');
                write_canonical(&map[key], out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// Lower-case hex BLAKE3 (64 characters) of raw bytes.
#[must_use]
pub fn blake3_hex(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Lower-case hex BLAKE3 of the canonical JSON of a value.
#[must_use]
pub fn digest<T: Serialize + ?Sized>(value: &T) -> String {
    blake3_hex(canonical_json(value).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn key_order_does_not_matter_at_any_depth() {
        let left = json!({"b": [{"y": 1, "x": "ü"}], "a": null});
        let right = json!({"a": null, "b": [{"x": "ü", "y": 1}]});
        assert_eq!(canonical_json(&left), r#"{"a":null,"b":[{"x":"ü","y":1}]}"#);
        assert_eq!(digest(&left), digest(&right));
    }

    #[test]
    fn list_order_matters() {
        assert_ne!(digest(&json!([1, 2])), digest(&json!([2, 1])));
    }
}
