//! YAML text as a tree in which every key and value knows its file and line.
//!
//! Compose files use anchors, merge keys and the tags `!reset` and `!override`, so the tree is built from parser events
//! and not through serde, which shows neither places nor tags.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};

use crate::error::FileError;

/// Nesting that Compose files never reach.
const DEPTH_MAX: usize = 48;
/// Nodes of one file with all aliases written out: far above real files, far below a bomb.
const NODES_MAX: usize = 200_000;

/// Where something stands.
#[derive(Clone, PartialEq, Eq)]
pub struct Place {
    /// File as given.
    pub file: Arc<str>,
    /// Line from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// How an overlay treats what it lies on (Compose specification, merge).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeTag {
    /// `!reset`: the key goes away.
    Reset,
    /// `!override`: the value replaces instead of merging.
    Override,
}

/// A value with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where it stands.
    pub at: Place,
    /// What it is.
    pub value: Value,
    /// Merge tag, if any.
    pub tag: Option<MergeTag>,
}

/// Kinds of value. A plain scalar keeps its text: its type is decided by the key that holds it, after interpolation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Null,
    /// A scalar; `plain` when it was written without quotes.
    Scalar {
        /// Text after escapes.
        text: String,
        /// Written without quotes.
        plain: bool,
    },
    /// A list.
    List(Vec<Node>),
    /// A map in file order.
    Map(Vec<Entry>),
}

/// One key of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Key.
    pub key: String,
    /// Where the key stands.
    pub at: Place,
    /// Value.
    pub node: Node,
}

impl Node {
    /// A scalar that no file holds.
    #[must_use]
    pub fn text(at: &Place, text: impl Into<String>) -> Self {
        Self { at: at.clone(), value: Value::Scalar { text: text.into(), plain: false }, tag: None }
    }

    /// The value under a key of a map.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    /// Entries of a map; nothing for every other kind.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// Entries of a map for change; `None` for every other kind.
    pub fn entries_mut(&mut self) -> Option<&mut Vec<Entry>> {
        match &mut self.value {
            Value::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// What it is, in words for a message.
    #[must_use]
    pub fn kind(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Scalar { text, .. } => format!("{:?}", text.chars().take(60).collect::<String>()),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }
}

/// Reads one document.
///
/// # Errors
/// [`FileError`] with file and line: broken YAML, a key given twice, several documents, unknown tags, too much nesting.
pub fn read(file: &str, text: &str) -> Result<Node, FileError> {
    let mut builder =
        Builder { file: file.into(), parser: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0 };
    let root = builder.document()?;
    Ok(root)
}

struct Builder<'a> {
    file: Arc<str>,
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
}

impl<'a> Builder<'a> {
    /// The next event that is part of the data. Comments are events too when the parser is built to tell them, which
    /// another crate of the same build may ask for.
    fn next(&mut self) -> Result<(Event<'a>, Span), FileError> {
        loop {
            match self.parser.next_event() {
                Some(Ok((event, span))) if is_data(&event) => return Ok((event, span)),
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    let at = Place { file: Arc::clone(&self.file), line: error.marker().line().max(1) };
                    return Err(FileError::new(&at, format!("this can't be read as YAML: {}", error.info())));
                }
                None => return Ok((Event::StreamEnd, Span::default())),
            }
        }
    }

    fn place(&self, span: &Span) -> Place {
        Place { file: Arc::clone(&self.file), line: span.start.line().max(1) }
    }

    fn document(&mut self) -> Result<Node, FileError> {
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentStart(..) => {}
                Event::StreamEnd | Event::DocumentEnd => {
                    return Err(FileError::new(&self.place(&span), "the file is empty".to_owned()));
                }
                event => {
                    let root = self.node(event, &span, 0)?;
                    return self.end(root);
                }
            }
        }
    }

    fn end(&mut self, root: Node) -> Result<Node, FileError> {
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(root),
                Event::DocumentStart(..) => {
                    let text = "the file holds more than one document; only one is read".to_owned();
                    return Err(FileError::new(&self.place(&span), text));
                }
                _ => {}
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: &Span, depth: usize) -> Result<Node, FileError> {
        let at = self.place(span);
        self.nodes += 1;
        if depth > DEPTH_MAX || self.nodes > NODES_MAX {
            let text = format!("more than {DEPTH_MAX} levels or {NODES_MAX} values");
            return Err(FileError::new(&at, text));
        }
        let (value, anchor, tag) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                let null = plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let value = if null { Value::Null } else { Value::Scalar { text: text.into(), plain } };
                (value, anchor, tag)
            }
            Event::SequenceStart(_, anchor, tag) => {
                let mut items = Vec::new();
                loop {
                    let (event, span) = self.next()?;
                    if matches!(event, Event::SequenceEnd) {
                        break;
                    }
                    items.push(self.node(event, &span, depth + 1)?);
                }
                (Value::List(items), anchor, tag)
            }
            Event::MappingStart(_, anchor, tag) => (Value::Map(self.map(depth)?), anchor, tag),
            Event::Alias(id) => return self.alias(id, &at),
            other => return Err(FileError::new(&at, format!("a value is expected here, not {other:?}"))),
        };
        let tag = tag.map(|tag| merge_tag(&tag, &at)).transpose()?.flatten();
        let node = Node { at, value, tag };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn alias(&mut self, id: usize, at: &Place) -> Result<Node, FileError> {
        let node = self.anchors.get(&id).cloned();
        let node = node.ok_or_else(|| FileError::new(at, "this alias has no finished anchor".to_owned()))?;
        self.nodes += count(&node);
        if self.nodes > NODES_MAX {
            return Err(FileError::new(at, format!("aliases grow to more than {NODES_MAX} values")));
        }
        Ok(node)
    }

    fn map(&mut self, depth: usize) -> Result<Vec<Entry>, FileError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut merged: Vec<Entry> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            let at = self.place(&span);
            let key = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, style, ..) => {
                    if style == ScalarStyle::Plain && is_typed(&text) {
                        let text = format!("the key {text} is no text in YAML; put quotes around it");
                        return Err(FileError::new(&at, text));
                    }
                    text.into_owned()
                }
                _ => return Err(FileError::new(&at, "a key must be a plain text".to_owned())),
            };
            let (event, span) = self.next()?;
            let node = self.node(event, &span, depth + 1)?;
            if key == "<<" {
                merged.extend(merge_sources(node)?);
            } else if entries.iter().any(|entry| entry.key == key) {
                return Err(FileError::new(&at, format!("the key {key:?} is given twice in one map")));
            } else {
                entries.push(Entry { key, at, node });
            }
        }
        // Own keys win over merged ones, earlier sources over later ones (YAML merge key).
        for entry in merged {
            if !entries.iter().any(|own| own.key == entry.key) {
                entries.push(entry);
            }
        }
        Ok(entries)
    }
}

/// Whether a scalar without quotes is a number, a truth value or nothing: no Compose key is one.
fn is_typed(text: &str) -> bool {
    matches!(
        text,
        "" | "~" | "null" | "Null" | "NULL" | "true" | "True" | "TRUE" | "false" | "False" | "FALSE"
    ) || text.parse::<f64>().is_ok_and(f64::is_finite)
}

const fn is_data(event: &Event<'_>) -> bool {
    matches!(
        event,
        Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(..)
            | Event::DocumentEnd
            | Event::Alias(_)
            | Event::Scalar(..)
            | Event::SequenceStart(..)
            | Event::SequenceEnd
            | Event::MappingStart(..)
            | Event::MappingEnd
    )
}

fn count(node: &Node) -> usize {
    1 + match &node.value {
        Value::List(items) => items.iter().map(count).sum(),
        Value::Map(entries) => entries.iter().map(|entry| count(&entry.node)).sum(),
        _ => 0,
    }
}

fn merge_sources(node: Node) -> Result<Vec<Entry>, FileError> {
    let at = node.at.clone();
    match node.value {
        Value::Map(entries) => Ok(entries),
        Value::List(items) => {
            let mut all = Vec::new();
            for item in items {
                all.extend(merge_sources(item)?);
            }
            Ok(all)
        }
        _ => Err(FileError::new(&at, "`<<` takes a map or a list of maps".to_owned())),
    }
}

fn merge_tag(tag: &Tag, at: &Place) -> Result<Option<MergeTag>, FileError> {
    match tag.suffix() {
        "reset" => Ok(Some(MergeTag::Reset)),
        "override" => Ok(Some(MergeTag::Override)),
        _ if tag.is_yaml_core_schema() => Ok(None),
        other => Err(FileError::new(at, format!("unknown tag !{other}; known: !reset, !override"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(node: &Node) -> &str {
        match &node.value {
            Value::Scalar { text, .. } => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn keys_and_values_know_their_lines() {
        let root = read("a.yml", "services: # all\n  web:\n    image: x # one\n").unwrap();
        let image = root.get("services").unwrap().get("web").unwrap().get("image").unwrap();
        assert_eq!((image.at.to_string(), scalar(image)), ("a.yml:3".to_owned(), "x"));
    }

    #[test]
    fn anchors_and_merge_keys_are_written_out_and_own_keys_win() {
        let text = "x-a: &a { image: base, user: u }\nservices:\n  web: { <<: *a, image: own }\n";
        let root = read("a.yml", text).unwrap();
        let web = root.get("services").unwrap().get("web").unwrap();
        assert_eq!(scalar(web.get("image").unwrap()), "own");
        assert_eq!(scalar(web.get("user").unwrap()), "u");
    }

    #[test]
    fn bad_files_are_refused_with_their_line() {
        let table = [
            ("a: 1\na: 2\n", "a.yml:2: the key \"a\" is given twice"),
            ("a: [1\n", "can't be read as YAML"),
            ("a: 1\n---\nb: 2\n", "more than one document"),
            ("a: !foo 1\n", "unknown tag !foo"),
            ("a: { 123: b }\n", "a.yml:1: the key 123 is no text"),
            ("", "empty"),
            ("a: *nothing\n", "a.yml:1"),
        ];
        for (text, part) in table {
            let error = read("a.yml", text).unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut text = "x0: &x0 [a, a, a, a, a, a, a, a, a, a]\n".to_owned();
        for level in 1..8 {
            let before = level - 1;
            let refs = vec![format!("*x{before}"); 10].join(", ");
            text.push_str(&format!("x{level}: &x{level} [{refs}]\n"));
        }
        assert!(read("a.yml", &text).unwrap_err().to_string().contains("more than"));
    }

    #[test]
    fn tags_say_how_an_overlay_merges() {
        let root = read("a.yml", "a: !reset null\nb: !override [1]\n").unwrap();
        assert_eq!(root.get("a").unwrap().tag, Some(MergeTag::Reset));
        assert_eq!(root.get("b").unwrap().tag, Some(MergeTag::Override));
    }
}
