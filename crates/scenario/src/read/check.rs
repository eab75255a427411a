//! Holds a tree against the JSON Schema of its type: unknown keys and words with the nearest known one, missing keys,
//! wrong kinds, bad quantities. It goes on after a problem, so that one reading shows them all.

use schemars::JsonSchema;
use serde_json::{Map, Value as Json};

use crate::error::nearest;
use crate::read::Problems;
use crate::read::settings;
use crate::read::tree::{Entry, Node, Value, join, shorten};
use crate::units::{Micros, Ppb};

/// Checks a whole file against the schema of `T`.
pub(super) fn check<T: JsonSchema>(root: &Node, what: &str, problems: &mut Problems<'_>) {
    let schema = schemars::schema_for!(T).to_value();
    let definitions = schema.get("$defs").and_then(Json::as_object).cloned().unwrap_or_default();
    if !matches!(root.value, Value::Map(_)) {
        problems.add("", format!("the file holds {}, not the keys of {what}", root.kind()));
        return;
    }
    Checker { definitions, what: what.to_owned(), problems }.node(root, &schema, "");
}

struct Checker<'a, 'p> {
    definitions: Map<String, Json>,
    /// What the file is, for messages about its top.
    what: String,
    problems: &'a mut Problems<'p>,
}

impl Checker<'_, '_> {
    /// Follows `$ref`; gives the name of the definition too.
    fn resolve<'s>(&'s self, schema: &'s Json) -> (&'s Json, &'s str) {
        let name = schema.get("$ref").and_then(Json::as_str).and_then(|path| path.rsplit('/').next());
        match name.and_then(|name| self.definitions.get_key_value(name)) {
            Some((name, found)) => (found, name),
            None => (schema, ""),
        }
    }

    fn node(&mut self, node: &Node, schema: &Json, path: &str) {
        let (found, name) = self.resolve(schema);
        let (schema, name) = (found.clone(), name.to_owned());
        match name.as_str() {
            "Timing" => return self.timing(node, &schema, path),
            "Limit" if matches!(&node.value, Value::Text(text) if text == "protocol") => return,
            "Limit" => {
                return self.quantity(node, path, "`protocol` or a duration such as 30s", Micros::parse);
            }
            "Duration" => return self.quantity(node, path, "a duration such as 150ms", Micros::parse),
            "Fraction" => return self.quantity(node, path, "a decimal from 0 to 1 such as 0.25", Ppb::parse),
            _ => {}
        }
        if path == "devshard.settings" {
            return self.settings(node, "", path);
        }
        if let Some(options) = alternatives(&schema) {
            // An optional value is "this or nothing", which is no choice.
            let mut some = options.iter().filter(|option| !has_type(option, "null"));
            return match (some.next(), some.next()) {
                (Some(_), None) if matches!(node.value, Value::Null) && options.len() > 1 => {}
                (Some(only), None) if options.len() > 1 => self.node(node, only, path),
                _ => self.choice(node, options, path),
            };
        }
        if schema.get("enum").is_some() || schema.get("const").is_some() {
            return self.choice(node, std::slice::from_ref(&schema), path);
        }
        match &node.value {
            Value::Map(entries) if schema.get("properties").is_some() => {
                self.object(node, entries, &schema, (path, &name));
            }
            Value::Map(entries) if schema.get("additionalProperties").is_some_and(Json::is_object) => {
                for entry in entries {
                    self.node(&entry.node, &schema["additionalProperties"], &join(path, &entry.key));
                }
            }
            Value::List(items) if has_type(&schema, "array") => {
                for (index, item) in items.iter().enumerate() {
                    self.node(item, &schema["items"], &format!("{path}[{index}]"));
                }
            }
            _ => self.scalar(node, &schema, path),
        }
    }

    fn object(&mut self, node: &Node, entries: &[Entry], schema: &Json, (path, name): (&str, &str)) {
        let Some(properties) = schema.get("properties").and_then(Json::as_object) else { return };
        let place = if path.is_empty() { self.what.clone() } else { path.to_owned() };
        // A needed key that was only misspelt is not missing too.
        let mut meant = Vec::new();
        for entry in entries {
            let key_path = join(path, &entry.key);
            let Some(property) = properties.get(&entry.key) else {
                let known = properties.keys().map(String::as_str);
                meant.extend(self.unknown_key(entry, &key_path, &place, known));
                continue;
            };
            // Which actions exist depends on where the rule applies; the schema alone can't say that.
            let action = (name == "FaultRule" && entry.key == "do").then(|| self.action_of(node)).flatten();
            match action {
                Some(schema) => self.node(&entry.node, &schema, &key_path),
                None => self.node(&entry.node, property, &key_path),
            }
        }
        for key in schema.get("required").and_then(Json::as_array).into_iter().flatten() {
            let key = key.as_str().unwrap_or_default();
            if !entries.iter().any(|entry| entry.key == key) && !meant.iter().any(|meant| meant == key) {
                self.problems.at(node.position, path, format!("{place} has no key {key:?}, which is needed"));
            }
        }
    }

    /// The actions of the place that a rule names; `None` when it names none or several (said elsewhere).
    fn action_of(&self, rule: &Node) -> Option<Json> {
        let place = rule.get("where")?;
        let named = |key| place.get(key).is_some_and(|node| !matches!(node.value, Value::Null));
        let definition = match (named("node"), named("dapi"), named("chain")) {
            (true, false, false) => "NodeFault",
            (false, true, false) => "DapiFault",
            (false, false, true) => "ChainFault",
            _ => return None,
        };
        self.definitions.get(definition).cloned()
    }

    /// Gives the key that was meant, if one is near.
    fn unknown_key<'k>(
        &mut self,
        entry: &Entry,
        path: &str,
        place: &str,
        known: impl Iterator<Item = &'k str> + Clone,
    ) -> Option<String> {
        let suggestion = nearest(&entry.key, known.clone());
        let mut text = format!("unknown key {:?} in {place}", shorten(&entry.key));
        if suggestion.is_none() {
            let known: Vec<&str> = known.collect();
            text.push_str(&format!("; known are {}", known.join(", ")));
        }
        self.problems.put(entry.key_position, path, text, suggestion.clone());
        suggestion
    }

    /// An enum: one word of several, or a map with exactly one of several keys.
    fn choice(&mut self, node: &Node, options: &[Json], path: &str) {
        let options: Vec<Json> = self.flatten(options);
        let words: Vec<&str> = options.iter().flat_map(words_of).collect();
        let keys: Vec<(&String, &Json)> = options
            .iter()
            .filter_map(|option| option.get("properties").and_then(Json::as_object))
            .flat_map(Map::iter)
            .collect();
        let named = keys.iter().map(|(key, _)| key.as_str());
        let all: Vec<&str> = words.iter().copied().chain(named.clone()).collect();
        match &node.value {
            Value::Text(text) if words.contains(&text.as_str()) => {}
            Value::Text(text) if !words.is_empty() => {
                let message =
                    format!("unknown word {:?} for {path}; known are {}", shorten(text), all.join(", "));
                self.problems.put(node.position, path, message, nearest(text, all));
            }
            Value::Map(entries) if !keys.is_empty() => {
                for entry in entries {
                    let key_path = join(path, &entry.key);
                    match keys.iter().find(|(key, _)| **key == entry.key) {
                        Some((_, schema)) => self.node(&entry.node, schema, &key_path),
                        None => {
                            self.unknown_key(entry, &key_path, path, named.clone());
                        }
                    }
                }
                if entries.len() != 1 {
                    let text =
                        format!("{path} takes exactly one of {}, not {}", all.join(", "), entries.len());
                    self.problems.at(node.position, path, text);
                }
            }
            _ => {
                let text = format!("{path} is {}, but takes one of {}", node.kind(), all.join(", "));
                self.problems.at(node.position, path, text);
            }
        }
    }

    /// The alternatives of a choice with references followed and inner choices opened.
    fn flatten(&self, options: &[Json]) -> Vec<Json> {
        let mut flat = Vec::new();
        for option in options {
            let (found, _) = self.resolve(option);
            match alternatives(found) {
                Some(inner) => flat.extend(self.flatten(inner)),
                None => flat.push(found.clone()),
            }
        }
        flat
    }

    fn quantity<T>(
        &mut self,
        node: &Node,
        path: &str,
        expected: &str,
        parse: fn(&str) -> Result<T, crate::units::UnitError>,
    ) {
        let text = match &node.value {
            Value::Text(text) => text.clone(),
            Value::Unsigned(number) => number.to_string(),
            Value::Negative(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            _ => {
                let text = format!("{path} is {}, but takes {expected}", node.kind());
                return self.problems.at(node.position, path, text);
            }
        };
        if let Err(error) = parse(&shorten(&text)) {
            self.problems.at(node.position, path, format!("{path}: {error}"));
        }
    }

    /// One duration, or a range of two.
    fn timing(&mut self, node: &Node, schema: &Json, path: &str) {
        let range =
            alternatives(schema).and_then(|options| options.iter().find(|o| o.get("properties").is_some()));
        match (&node.value, range) {
            (Value::Map(_), Some(range)) => {
                self.node(node, range, path);
                let end = |key| match &node.get(key)?.value {
                    Value::Text(text) => Micros::parse(text).ok(),
                    _ => None,
                };
                if let (Some(min), Some(max)) = (end("min"), end("max"))
                    && min > max
                {
                    self.problems.at(node.position, path, format!("{path}: min {min} is above max {max}"));
                }
            }
            _ => self.quantity(
                node,
                path,
                "a duration such as 25ms or {min: 150ms, max: 350ms}",
                Micros::parse,
            ),
        }
    }

    fn scalar(&mut self, node: &Node, schema: &Json, path: &str) {
        let expected = match &node.value {
            Value::Null if has_type(schema, "null") => return,
            Value::Bool(_) if has_type(schema, "boolean") => return,
            Value::Text(_) if has_type(schema, "string") => return,
            Value::Unsigned(number) if has_type(schema, "integer") => {
                let max = match schema.get("format").and_then(Json::as_str) {
                    Some("uint16") => u64::from(u16::MAX),
                    Some("uint32") => u64::from(u32::MAX),
                    _ => u64::MAX,
                };
                if *number <= max {
                    return;
                }
                format!("a whole number up to {max}")
            }
            _ if schema.get("type").is_none() => return,
            _ => describe(schema).to_owned(),
        };
        let text = format!("{path} is {}, but takes {expected}", node.kind());
        self.problems.at(node.position, path, text);
    }

    /// Below `devshard.settings` only names that the gateway has.
    fn settings(&mut self, node: &Node, place: &str, path: &str) {
        let entries = match &node.value {
            Value::Map(entries) => entries,
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.settings(item, place, &format!("{path}[{index}]"));
                }
                return;
            }
            _ => {
                let text = format!("{path} is {}, but takes a map of gateway settings", node.kind());
                return self.problems.at(node.position, path, text);
            }
        };
        let Some(known) = settings::known(place) else { return };
        for entry in entries {
            let key_path = join(path, &entry.key);
            if !known.contains(&entry.key.as_str()) {
                self.unknown_key(entry, &key_path, path, known.iter().copied());
                continue;
            }
            let inner = join(place, &entry.key);
            if settings::known(&inner).is_some() {
                self.settings(&entry.node, &inner, &key_path);
            } else if matches!(entry.node.value, Value::Map(_) | Value::List(_)) {
                let text = format!("{key_path} is {}, but takes one value", entry.node.kind());
                self.problems.at(entry.node.position, &key_path, text);
            } else if let Some(words) = settings::words(&entry.key) {
                self.setting_word(&entry.node, words, &key_path);
            } else {
                self.setting_kind(entry, &key_path);
            }
        }
    }

    fn setting_word(&mut self, node: &Node, words: &[&'static str], path: &str) {
        match &node.value {
            Value::Text(text) if words.contains(&text.as_str()) => {}
            value => {
                let near = match value {
                    Value::Text(text) => nearest(text, words.iter().copied()),
                    _ => None,
                };
                let text = format!("{path} is {}; known are {}", node.kind(), words.join(", "));
                self.problems.put(node.position, path, text, near);
            }
        }
    }

    /// No setting of the gateway is negative, and one that counts milliseconds takes a plain number.
    fn setting_kind(&mut self, entry: &Entry, path: &str) {
        let node = &entry.node;
        let bad = match &node.value {
            Value::Negative(_) => Some("a number that is not negative"),
            Value::Float(number) if *number < 0.0 || !number.is_finite() => {
                Some("a number that is not negative")
            }
            value if entry.key.ends_with("_ms") && !matches!(value, Value::Unsigned(_)) => {
                Some("a whole number of milliseconds without unit (the gateway's own form)")
            }
            _ => None,
        };
        if let Some(expected) = bad {
            self.problems.at(node.position, path, format!("{path} is {}, but takes {expected}", node.kind()));
        }
    }
}

fn alternatives(schema: &Json) -> Option<&Vec<Json>> {
    schema.get("oneOf").or_else(|| schema.get("anyOf")).and_then(Json::as_array)
}

fn words_of(option: &Json) -> Vec<&str> {
    let word = option.get("const").and_then(Json::as_str);
    let words = option.get("enum").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str);
    word.into_iter().chain(words).collect()
}

fn has_type(schema: &Json, name: &str) -> bool {
    match schema.get("type") {
        Some(Json::String(one)) => one == name,
        Some(Json::Array(several)) => several.iter().any(|one| one == name),
        _ => false,
    }
}

fn describe(schema: &Json) -> &'static str {
    let kinds = [
        ("integer", "a whole number that is not negative"),
        ("number", "a number"),
        ("boolean", "true or false"),
        ("string", "a text"),
        ("array", "a list"),
        ("object", "a map"),
    ];
    kinds.iter().find(|(name, _)| has_type(schema, name)).map_or("something else", |(_, text)| text)
}
