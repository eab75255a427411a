//! The one comparator between a captured answer and ours: where do they differ?

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Longest value that a difference shows.
const SHOWN_MAX: usize = 120;

/// One place where two answers differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Field numbers of a message (`2.7`), names of a JSON document (`/result/id`), or `status`, `content-type`, `body`.
    pub path: String,
    /// What both say.
    pub text: String,
}

impl Difference {
    pub fn new(path: &str, theirs: &str, ours: &str) -> Self {
        let short = |text: &str| text.chars().take(SHOWN_MAX).collect::<String>();
        Self { path: path.to_owned(), text: format!("captured {}, ours {}", short(theirs), short(ours)) }
    }
}

/// Value of one field as it stands on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Field {
    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Bytes(bytes) => {
                String::from_utf8(bytes.clone()).unwrap_or_else(|_| format!("0x{}", hex::encode(bytes)))
            }
        }
    }
}

/// Differences of two encoded messages, by field numbers; none exactly when the bytes are equal.
pub fn message(path: &str, theirs: &[u8], ours: &[u8], found: &mut Vec<Difference>) {
    if theirs == ours {
        return;
    }
    let before = found.len();
    if let (Some(theirs), Some(ours)) = (fields(theirs), fields(ours)) {
        let numbers: BTreeSet<u64> = theirs.keys().chain(ours.keys()).copied().collect();
        for number in numbers {
            let path = if path.is_empty() { number.to_string() } else { format!("{path}.{number}") };
            let of = |side: &BTreeMap<u64, Vec<Field>>| side.get(&number).cloned().unwrap_or_default();
            repeated(&path, &of(&theirs), &of(&ours), found);
        }
    }
    if found.len() == before {
        let hex = |bytes: &[u8]| format!("0x{}", hex::encode(bytes));
        found.push(Difference::new(path, &hex(theirs), &hex(ours)));
    }
}

fn repeated(path: &str, theirs: &[Field], ours: &[Field], found: &mut Vec<Difference>) {
    if theirs.len() != ours.len() {
        let all = |side: &[Field]| match side {
            [] => "nothing".to_owned(),
            side => side.iter().map(Field::text).collect::<Vec<_>>().join(", "),
        };
        found.push(Difference::new(path, &all(theirs), &all(ours)));
        return;
    }
    for (theirs, ours) in theirs.iter().zip(ours) {
        match (theirs, ours) {
            (Field::Bytes(theirs), Field::Bytes(ours)) if !readable(theirs) && !readable(ours) => {
                message(path, theirs, ours, found);
            }
            (theirs, ours) if theirs != ours => {
                found.push(Difference::new(path, &theirs.text(), &ours.text()));
            }
            _ => {}
        }
    }
}

/// Text has no control characters; an encoded message nearly always has.
fn readable(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| !text.chars().any(char::is_control))
}

/// Fields by number, or nothing when these bytes are no message.
fn fields(mut bytes: &[u8]) -> Option<BTreeMap<u64, Vec<Field>>> {
    let mut all: BTreeMap<u64, Vec<Field>> = BTreeMap::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (value, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Field::Bytes(value.to_vec())
            }
            _ => return None,
        };
        all.entry(tag >> 3).or_default().push(field);
    }
    Some(all)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Differences of two JSON documents, by path.
pub fn json_paths(path: &str, theirs: &Value, ours: &Value, found: &mut Vec<Difference>) {
    match (theirs, ours) {
        (Value::Object(left), Value::Object(right)) => {
            let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for name in names {
                let path = format!("{path}/{name}");
                match (left.get(name), right.get(name)) {
                    (Some(theirs), Some(ours)) => json_paths(&path, theirs, ours, found),
                    (theirs, ours) => {
                        let text = |side: Option<&Value>| side.map_or("nothing".to_owned(), Value::to_string);
                        found.push(Difference::new(&path, &text(theirs), &text(ours)));
                    }
                }
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (theirs, ours) in left.iter().zip(right) {
                json_paths(&format!("{path}/*"), theirs, ours, found);
            }
        }
        (theirs, ours) if theirs != ours => {
            found.push(Difference::new(path, &theirs.to_string(), &ours.to_string()));
        }
        _ => {}
    }
}

#[test]
fn a_changed_byte_is_found_by_its_path() {
    // {1: {2: "abc", 3: 7}} against {1: {2: "abd", 3: 7}, 4: 1}.
    let (theirs, ours) = (b"\x0a\x07\x12\x03abc\x18\x07", b"\x0a\x07\x12\x03abd\x18\x07\x20\x01");
    let mut found = Vec::new();
    message("", theirs, ours, &mut found);
    let paths: Vec<&str> = found.iter().map(|difference| difference.path.as_str()).collect();
    assert_eq!(paths, ["1.2", "4"]);
    let mut none = Vec::new();
    message("", theirs, theirs, &mut none);
    assert_eq!(none, []);
    // The same fields in another order are other bytes.
    let mut order = Vec::new();
    message("", b"\x08\x01\x10\x02", b"\x10\x02\x08\x01", &mut order);
    assert_eq!(order.len(), 1);
}
