//! Short forms become long ones before files are merged, so that an overlay may use the other form.

use super::tree::{Entry, Node, Value};
use crate::error::FileError;

/// Keys of a service whose list form `K=V` becomes a map.
const PAIRS: [(&str, char); 3] = [("environment", '='), ("labels", '='), ("sysctls", '=')];
/// Keys of a service whose list of names becomes a map.
const NAMES: [&str; 2] = ["depends_on", "networks"];

/// Brings every service of a file into its long form.
///
/// # Errors
/// [`FileError`] when a list holds something else than texts.
pub fn file(root: &mut Node) -> Result<(), FileError> {
    let Some(services) = entry_mut(root, "services") else { return Ok(()) };
    let Some(entries) = services.entries_mut() else { return Ok(()) };
    for service in entries {
        for (key, separator) in PAIRS {
            if let Some(node) = entry_mut(&mut service.node, key) {
                pairs(node, separator)?;
            }
        }
        for key in NAMES {
            if let Some(node) = entry_mut(&mut service.node, key) {
                names(node)?;
            }
        }
        if let Some(build) = entry_mut(&mut service.node, "build") {
            context(build);
            if let Some(args) = entry_mut(build, "args") {
                pairs(args, '=')?;
            }
        }
    }
    for section in ["networks", "volumes"] {
        let entries = entry_mut(root, section).and_then(Node::entries_mut);
        for entry in entries.into_iter().flatten() {
            if let Some(labels) = entry_mut(&mut entry.node, "labels") {
                pairs(labels, '=')?;
            }
        }
    }
    Ok(())
}

/// The value of a key, for change.
pub(super) fn entry_mut<'a>(node: &'a mut Node, key: &str) -> Option<&'a mut Node> {
    node.entries_mut()?.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.node)
}

fn items(node: &Node) -> Result<Option<Vec<(String, Node)>>, FileError> {
    let Value::List(list) = &node.value else { return Ok(None) };
    let text = |item: &Node| match &item.value {
        Value::Scalar { text, .. } => Ok((text.clone(), item.clone())),
        _ => Err(FileError::new(&item.at, format!("a text is expected here, not {}", item.kind()))),
    };
    list.iter().map(text).collect::<Result<_, _>>().map(Some)
}

fn pairs(node: &mut Node, separator: char) -> Result<(), FileError> {
    let Some(items) = items(node)? else { return Ok(()) };
    let mut entries: Vec<Entry> = Vec::new();
    for (text, item) in items {
        let at = item.at;
        let (key, value) = match text.split_once(separator) {
            Some((key, value)) => (key.to_owned(), Value::Scalar { text: value.to_owned(), plain: false }),
            None => (text, Value::Null),
        };
        // Within one list the later line wins, as for a shell.
        entries.retain(|entry| entry.key != key);
        entries.push(Entry { key, at: at.clone(), node: Node { at, value, tag: None } });
    }
    node.value = Value::Map(entries);
    Ok(())
}

fn names(node: &mut Node) -> Result<(), FileError> {
    let Some(items) = items(node)? else { return Ok(()) };
    let entry = |(key, item): (String, Node)| {
        let at = item.at;
        Entry { key, at: at.clone(), node: Node { at, value: Value::Null, tag: None } }
    };
    node.value = Value::Map(items.into_iter().map(entry).collect());
    Ok(())
}

fn context(node: &mut Node) {
    if matches!(node.value, Value::Scalar { .. }) {
        let at = node.at.clone();
        let inner = Node { at: at.clone(), value: node.value.clone(), tag: None };
        node.value = Value::Map(vec![Entry { key: "context".to_owned(), at, node: inner }]);
    }
}
