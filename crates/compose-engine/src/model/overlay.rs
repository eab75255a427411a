//! Merging files: maps merge, lists append, a few replace, some are unique by a key (Compose specification, merge).

use super::tree::{MergeTag, Node, Value};

/// Lays `over` on `base`.
#[must_use]
pub fn merge(base: Node, over: Node) -> Node {
    at_path(base, over, &mut Vec::new())
}

fn at_path(base: Node, over: Node, path: &mut Vec<String>) -> Node {
    if over.tag == Some(MergeTag::Override) {
        return over;
    }
    let (base_value, over_value) = (base.value, over.value);
    let value = match (base_value, over_value) {
        (Value::Map(base), Value::Map(over)) => {
            let mut merged = base;
            for entry in over {
                let place = merged.iter().position(|known| known.key == entry.key);
                if entry.node.tag == Some(MergeTag::Reset) {
                    if let Some(place) = place {
                        merged.remove(place);
                    }
                    continue;
                }
                path.push(entry.key.clone());
                match place {
                    Some(place) => {
                        let known = merged[place].node.clone();
                        merged[place].node = at_path(known, entry.node, path);
                        merged[place].at = entry.at;
                    }
                    None => merged.push(entry),
                }
                path.pop();
            }
            Value::Map(merged)
        }
        (Value::List(base), Value::List(over)) => list(base, over, path),
        // A null in an overlay leaves what is there: it is how a key without a value is written.
        (base, Value::Null) => base,
        (_, over) => over,
    };
    Node { at: over.at, value, tag: None }
}

fn list(base: Vec<Node>, over: Vec<Node>, path: &[String]) -> Value {
    let within: Vec<&str> = path.iter().skip(2).map(String::as_str).collect();
    let in_service = path.first().is_some_and(|first| first == "services");
    match within.as_slice() {
        ["command" | "entrypoint"] | ["healthcheck", "test"] if in_service => Value::List(over),
        ["volumes" | "tmpfs" | "secrets" | "configs"] if in_service => unique(base, over, target),
        ["ports"] if in_service => unique(base, over, port),
        _ => Value::List(base.into_iter().chain(over).collect()),
    }
}

/// Appends what is new and replaces what has the same key.
fn unique(base: Vec<Node>, over: Vec<Node>, key: fn(&Node) -> String) -> Value {
    let mut merged = base;
    for item in over {
        let own = key(&item);
        match merged.iter().position(|known| key(known) == own) {
            Some(place) => merged[place] = item,
            None => merged.push(item),
        }
    }
    Value::List(merged)
}

fn scalar(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar { text, .. } => Some(text),
        _ => None,
    }
}

/// The path in the container that a mount, secret or config ends at.
fn target(node: &Node) -> String {
    if let Some(text) = scalar(node) {
        let mut parts = text.split(':');
        let first = parts.next().unwrap_or_default();
        return parts.next().unwrap_or(first).to_owned();
    }
    let named = |key| node.get(key).and_then(scalar).map(str::to_owned);
    named("target").or_else(|| named("source")).unwrap_or_default()
}

/// Address, target, published and protocol of a port.
fn port(node: &Node) -> String {
    if let Some(text) = scalar(node) {
        return text.strip_suffix("/tcp").unwrap_or(text).to_owned();
    }
    let part = |key| node.get(key).and_then(scalar).unwrap_or_default().to_owned();
    let host = [part("host_ip"), part("published"), part("target")];
    let joined = host.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(":");
    match part("protocol").as_str() {
        "" | "tcp" => joined,
        other => format!("{joined}/{other}"),
    }
}
