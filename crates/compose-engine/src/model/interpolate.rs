//! `$VAR` and `${VAR…}` in values, from an explicit map only: the environment of the caller never leaks into a run.

use std::collections::BTreeMap;

use super::tree::{Node, Place, Value};
use crate::error::FileError;

/// Variables that files may use. Their names go into the plan; values may be secrets and never do.
pub type Variables = BTreeMap<String, String>;

/// Nested defaults (`${A:-${B:-c}}`) that real files never reach.
const NESTING_MAX: usize = 8;

/// Replaces variables in every value of the tree; keys stay as they are.
///
/// # Errors
/// [`FileError`] for a variable without value and default (an empty subnet or tag is never meant), for `${VAR:?text}`
/// and for broken syntax.
pub fn tree(node: &mut Node, variables: &Variables) -> Result<(), FileError> {
    match &mut node.value {
        Value::Null => {}
        Value::Scalar { text, .. } => {
            if text.contains('$') {
                *text = expand(text, variables, &node.at, 0)?;
            }
        }
        Value::List(items) => items.iter_mut().try_for_each(|item| tree(item, variables))?,
        Value::Map(entries) => {
            for entry in entries {
                // Extensions are never used, so what they mention need not be known.
                if !entry.key.starts_with("x-") {
                    tree(&mut entry.node, variables)?;
                }
            }
        }
    }
    Ok(())
}

/// Expands one text.
///
/// # Errors
/// As [`tree`].
pub fn text(input: &str, variables: &Variables, at: &Place) -> Result<String, FileError> {
    expand(input, variables, at, 0)
}

fn expand(input: &str, variables: &Variables, at: &Place, depth: usize) -> Result<String, FileError> {
    if depth > NESTING_MAX {
        return Err(FileError::new(at, format!("variables are nested more than {NESTING_MAX} deep")));
    }
    let mut out = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(start) = rest.find('$') {
        out.push_str(&rest[..start]);
        rest = &rest[start + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(after) = rest.strip_prefix('{') {
            let end = closing(after).ok_or_else(|| {
                FileError::new(at, format!("`${{` without `}}` in {input:?}; write $$ for a dollar sign"))
            })?;
            out.push_str(&braced(&after[..end], variables, at, depth)?);
            rest = &after[end + 1..];
        } else {
            let name = name_of(rest);
            if name.is_empty() {
                let text = format!("`$` without a name in {input:?}; write $$ for a dollar sign");
                return Err(FileError::new(at, text));
            }
            out.push_str(value(name, variables, at)?);
            rest = &rest[name.len()..];
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Offset of the brace that closes the one before the text.
fn closing(text: &str) -> Option<usize> {
    let mut open = 1;
    for (offset, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' => {
                open -= 1;
                if open == 0 {
                    return Some(offset);
                }
            }
            _ => {}
        }
    }
    None
}

fn name_of(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    if text.starts_with(|c: char| c.is_ascii_digit()) { "" } else { &text[..end] }
}

fn value<'a>(name: &str, variables: &'a Variables, at: &Place) -> Result<&'a str, FileError> {
    variables.get(name).map(String::as_str).ok_or_else(|| {
        let near = crate::near::nearest(name, variables.keys().map(String::as_str));
        let hint = near.map_or_else(String::new, |near| format!(" (nearest known: {near})"));
        FileError::new(
            at,
            format!("the variable {name} has no value{hint}; give it one or write ${{{name}:-default}}"),
        )
    })
}

fn braced(inner: &str, variables: &Variables, at: &Place, depth: usize) -> Result<String, FileError> {
    let name = name_of(inner);
    if name.is_empty() {
        return Err(FileError::new(at, format!("${{{inner}}} begins with no variable name")));
    }
    let operator = &inner[name.len()..];
    let given = variables.get(name).map(String::as_str);
    let filled = given.filter(|value| !value.is_empty());
    let nested = |text: &str| expand(text, variables, at, depth + 1);
    let missing = |text: &str| -> Result<String, FileError> {
        let reason = nested(text)?;
        let reason = if reason.is_empty() { "it is required".to_owned() } else { reason };
        Err(FileError::new(at, format!("the variable {name} has no value: {reason}")))
    };
    if operator.is_empty() {
        return value(name, variables, at).map(str::to_owned);
    }
    if let Some(text) = operator.strip_prefix(":-") {
        return filled.map_or_else(|| nested(text), |value| Ok(value.to_owned()));
    }
    if let Some(text) = operator.strip_prefix(":?") {
        return filled.map_or_else(|| missing(text), |value| Ok(value.to_owned()));
    }
    if let Some(text) = operator.strip_prefix(":+") {
        return filled.map_or_else(|| Ok(String::new()), |_| nested(text));
    }
    if let Some(text) = operator.strip_prefix('-') {
        return given.map_or_else(|| nested(text), |value| Ok(value.to_owned()));
    }
    if let Some(text) = operator.strip_prefix('?') {
        return given.map_or_else(|| missing(text), |value| Ok(value.to_owned()));
    }
    if let Some(text) = operator.strip_prefix('+') {
        return given.map_or_else(|| Ok(String::new()), |_| nested(text));
    }
    Err(FileError::new(at, format!("${{{inner}}}: after the name one of :- - :? ? :+ + is expected")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at() -> Place {
        Place { file: "f".into(), line: 1 }
    }

    fn known() -> Variables {
        [("A", "a"), ("EMPTY", ""), ("B", "b")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    }

    #[test]
    fn every_form_of_the_specification() {
        let table = [
            ("x$A-y", "xa-y"),
            ("${A}", "a"),
            ("${EMPTY:-d}", "d"),
            ("${EMPTY-d}", ""),
            ("${NONE-d}", "d"),
            ("${NONE:-${B:-c}}", "b"),
            ("${A:+yes}", "yes"),
            ("${EMPTY:+yes}", ""),
            ("${EMPTY+yes}", "yes"),
            ("${NONE+yes}", ""),
            ("${A:?m}", "a"),
            ("${EMPTY?m}", ""),
            ("$$A", "$A"),
            ("$${A}", "${A}"),
            ("no dollar", "no dollar"),
        ];
        for (input, expected) in table {
            assert_eq!(text(input, &known(), &at()).unwrap(), expected, "{input}");
        }
    }

    #[test]
    fn what_is_never_meant_is_an_error() {
        let table = [
            ("$NONE", "the variable NONE has no value"),
            ("${EMPTY:?give one}", "give one"),
            ("${NONE?}", "required"),
            ("${A", "without `}`"),
            ("$ x", "without a name"),
            ("${A/x}", "one of"),
            ("${1}", "no variable name"),
            ("$EMPTZ", "nearest known: EMPTY"),
        ];
        for (input, part) in table {
            let error = text(input, &known(), &at()).unwrap_err().to_string();
            assert!(error.contains(part), "{input}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_survives_escaping(input in ".*") {
            let escaped = input.replace('$', "$$");
            prop_assert_eq!(text(&escaped, &Variables::new(), &at()).unwrap(), input);
        }

        #[test]
        fn any_text_ends_in_a_value_or_an_error(input in "[$A{}:?+-]{0,40}") {
            drop(text(&input, &known(), &at()));
        }
    }
}
