//! YAML text as a tree in which every key and value knows its place.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_yaml::budget::BudgetBreach;
use serde_yaml::{Error, Location, Options, Spanned};

use crate::error::Position;

/// Nesting that the formats never reach.
const DEPTH_MAX: usize = 32;
/// Events that aliases may add: enough to share an `expect`, too few to explode.
const ALIAS_EVENTS_MAX: usize = 10_000;
/// Longest message taken over from the YAML reader.
const MESSAGE_LEN_MAX: usize = 300;

/// A value with its place.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) position: Position,
    pub(super) value: Value,
}

/// The kinds of value that YAML knows.
#[derive(Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One key of a map.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_position: Position,
    pub(super) node: Node,
}

/// Where the values of a file stand, by key path (`pool[0].name`).
#[derive(Clone, Debug, Default)]
pub struct Positions(BTreeMap<String, Position>);

impl Positions {
    /// The place of a value, or of the nearest value around it that is in the file.
    #[must_use]
    pub fn of(&self, path: &str) -> Position {
        let mut path = path;
        loop {
            if let Some(position) = self.0.get(path) {
                return *position;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return self.0.get("").copied().unwrap_or(Position::START),
            }
        }
    }

    /// Whether the file itself gives this value.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }
}

/// The path of a key under a path.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

impl Node {
    pub(super) fn positions(&self) -> Positions {
        let mut found = BTreeMap::new();
        self.collect("", &mut found);
        Positions(found)
    }

    fn collect(&self, path: &str, found: &mut BTreeMap<String, Position>) {
        found.insert(path.to_owned(), self.position);
        match &self.value {
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    item.collect(&format!("{path}[{index}]"), found);
                }
            }
            Value::Map(entries) => {
                for entry in entries {
                    entry.node.collect(&join(path, &entry.key), found);
                }
            }
            _ => {}
        }
    }

    /// What it is, in words for a message.
    pub(super) fn kind(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => format!("{value}"),
            Value::Unsigned(number) => format!("the number {number}"),
            Value::Negative(number) => format!("the number {number}"),
            Value::Float(number) => format!("the number {number}"),
            Value::Text(text) => format!("the text {:?}", shorten(text)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }

    /// The value under a key of a map.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node),
            _ => None,
        }
    }
}

/// A text of any length as it may stand in a message.
pub(super) fn shorten(text: &str) -> String {
    const SHOWN: usize = 60;
    if text.chars().count() <= SHOWN {
        return text.to_owned();
    }
    text.chars().take(SHOWN).chain("…".chars()).collect()
}

fn options() -> Options {
    let budget = serde_yaml::budget! { max_depth: DEPTH_MAX, max_documents: 1 };
    let alias_limits = serde_yaml::alias_limits! {
        max_total_replayed_events: ALIAS_EVENTS_MAX,
        max_replay_stack_depth: 8,
    };
    serde_yaml::options! {
        budget: budget,
        alias_limits: alias_limits,
        duplicate_keys: serde_yaml::DuplicateKeyPolicy::Error,
        merge_keys: serde_yaml::MergeKeyPolicy::Error,
        strict_booleans: true,
        underscored_numbers_as_strings: true,
        leading_zero_numbers_as_strings: true,
        reject_unsupported_tags: true,
        with_snippet: false,
        emit_comments: false,
    }
}

fn place(location: Location) -> Position {
    Position { line: location.line().max(1), column: location.column().max(1) }
}

fn failure(error: &Error) -> (Position, String) {
    let position = error.location().map_or(Position::START, place);
    let mut inner = error;
    // Wrappers that only add where an alias was used.
    while let Error::WithSnippet { error, .. } | Error::AliasError { error, .. } = inner {
        inner = error;
    }
    let text = match inner {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key {:?} is given twice in one map", shorten(key))
        }
        Error::DuplicateMappingKey { key: None, .. } => "a key is given twice in one map".to_owned(),
        Error::AliasReplayLimitExceeded { .. } | Error::AliasReplayStackDepthExceeded { .. } => {
            format!("aliases grow to more than {ALIAS_EVENTS_MAX} values; write the values out")
        }
        Error::MergeKeyNotAllowed { .. } => "merge keys (`<<`) are not read; write the keys out".to_owned(),
        Error::Budget { breach: BudgetBreach::Documents { .. }, .. } | Error::MultipleDocuments { .. } => {
            "the file holds more than one document; only one is read".to_owned()
        }
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => {
            format!("values are nested more than {DEPTH_MAX} deep")
        }
        other => plain(&other.to_string()),
    };
    (position, text)
}

/// The message without the place that the library appends: the place is told once, in front.
fn plain(text: &str) -> String {
    let text = text.lines().next().unwrap_or_default();
    let end = [" at line ", ", at line ", " (line "].iter().filter_map(|mark| text.find(mark)).min();
    let text = end.map_or(text, |end| &text[..end]);
    text.strip_prefix("error: ").unwrap_or(text).chars().take(MESSAGE_LEN_MAX).collect()
}

/// Reads the text into a tree.
pub(super) fn read(text: &str) -> Result<Node, (Position, String)> {
    let read = serde_yaml::from_str_with_options::<Spanned<Value>>(text, options());
    read.map(Node::from).map_err(|error| {
        let (position, message) = failure(&error);
        (position, format!("this can't be read as YAML: {message}"))
    })
}

/// Reads the text into its type.
pub(super) fn typed<T: DeserializeOwned>(text: &str) -> Result<T, (Position, String)> {
    serde_yaml::from_str_with_options::<T>(text, options()).map_err(|error| failure(&error))
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Self {
        Self { position: place(spanned.referenced), value: spanned.value }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Unsigned(number))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Value, E> {
        Ok(u64::try_from(number).map_or(Value::Negative(number), Value::Unsigned))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Value>>()? {
            list.push(Node::from(item));
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let key_position = place(key.referenced);
            let node = Node::from(map.next_value::<Spanned<Value>>()?);
            entries.push(Entry { key: key.value, key_position, node });
        }
        Ok(Value::Map(entries))
    }
}
