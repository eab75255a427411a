//! `x-each: <group>` on a service makes one service for each member of the group: replicas are explicit services.
//!
//! The key is an extension, so that other readers of the file see one plain service.

use std::collections::BTreeMap;

use super::interpolate::{self, Variables};
use super::tree::{Entry, Node, Value};
use crate::error::FileError;

/// The extension key.
pub const EACH: &str = "x-each";
/// The variable that holds a copy's own service name.
pub const SELF: &str = "SELF";

/// One copy of a template service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copy {
    /// Name of the service.
    pub name: String,
    /// Its own variables beside those of the project.
    pub variables: Variables,
}

/// Copies by group.
pub type Groups = BTreeMap<String, Vec<Copy>>;

/// Writes the copies of every template and replaces variables in the whole file.
///
/// # Errors
/// [`FileError`] for a group that nobody gave, and as [`interpolate::tree`].
pub fn file(root: &mut Node, variables: &Variables, groups: &Groups) -> Result<(), FileError> {
    let mut templates = BTreeMap::new();
    if let Some(services) = super::canon::entry_mut(root, "services").and_then(Node::entries_mut) {
        let mut expanded = Vec::new();
        for entry in std::mem::take(services) {
            match entry.node.get(EACH) {
                None => expanded.push(entry),
                Some(group) => {
                    let copies = copies(group, groups)?;
                    templates.insert(entry.key.clone(), copies);
                    for copy in copies {
                        expanded.push(one(&entry, copy, variables)?);
                    }
                }
            }
        }
        *services = expanded;
    }
    interpolate::tree(root, variables)?;
    if let Some(services) = super::canon::entry_mut(root, "services").and_then(Node::entries_mut) {
        for service in services {
            dependents(&mut service.node, &templates);
        }
    }
    Ok(())
}

fn copies<'a>(group: &Node, groups: &'a Groups) -> Result<&'a Vec<Copy>, FileError> {
    let name = match &group.value {
        Value::Scalar { text, .. } => text.as_str(),
        _ => return Err(FileError::new(&group.at, format!("`{EACH}` takes the name of a group"))),
    };
    groups.get(name).ok_or_else(|| {
        let known: Vec<&str> = groups.keys().map(String::as_str).collect();
        FileError::new(&group.at, format!("the group {name:?} is not given; known: {}", known.join(", ")))
    })
}

fn one(template: &Entry, copy: &Copy, variables: &Variables) -> Result<Entry, FileError> {
    let mut node = template.node.clone();
    if let Some(entries) = node.entries_mut() {
        entries.retain(|entry| entry.key != EACH);
    }
    let mut own = variables.clone();
    own.extend(copy.variables.clone());
    own.insert(SELF.to_owned(), copy.name.clone());
    interpolate::tree(&mut node, &own)?;
    // The whole file is interpolated once more afterwards: what came out of a value must stay as it is.
    escape(&mut node);
    Ok(Entry { key: copy.name.clone(), at: template.at.clone(), node })
}

fn escape(node: &mut Node) {
    match &mut node.value {
        Value::Null => {}
        Value::Scalar { text, .. } => *text = text.replace('$', "$$"),
        Value::List(items) => items.iter_mut().for_each(escape),
        Value::Map(entries) => entries.iter_mut().for_each(|entry| escape(&mut entry.node)),
    }
}

/// A dependency on a template is one on every copy.
fn dependents(service: &mut Node, templates: &BTreeMap<String, &Vec<Copy>>) {
    let Some(node) = super::canon::entry_mut(service, "depends_on") else { return };
    match &mut node.value {
        Value::List(items) => {
            let mut all = Vec::new();
            for item in std::mem::take(items) {
                let copies = match &item.value {
                    Value::Scalar { text, .. } => templates.get(text),
                    _ => None,
                };
                match copies {
                    Some(copies) => all.extend(copies.iter().map(|copy| Node::text(&item.at, &copy.name))),
                    None => all.push(item),
                }
            }
            *items = all;
        }
        Value::Map(entries) => {
            let mut all = Vec::new();
            for entry in std::mem::take(entries) {
                match templates.get(&entry.key) {
                    Some(copies) => {
                        all.extend(
                            copies.iter().map(|copy| Entry { key: copy.name.clone(), ..entry.clone() }),
                        );
                    }
                    None => all.push(entry),
                }
            }
            *entries = all;
        }
        _ => {}
    }
}
