//! Every dependency comes from the one registry and has a licence that `deny.toml` allows: what `cargo deny check
//! licenses sources` says, without the network that it needs for advisories.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The `allow` list of `[licenses]`.
fn allowed(root: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root.join("deny.toml")).unwrap();
    let (_, rest) = text.split_once("allow = [").unwrap();
    let (list, _) = rest.split_once(']').unwrap();
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether a licence expression can be met. `AND` binds more tightly than `OR`; `/` is an old `OR`.
fn met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let text = expression.replace('/', " OR ");
    // Innermost brackets first: each is replaced by whether it can be met.
    if let Some(close) = text.find(')')
        && let Some(open) = text[..close].rfind('(')
    {
        let inner = if met(&text[open + 1..close], allowed) { "MET" } else { "UNMET" };
        return met(&format!("{}{inner}{}", &text[..open], &text[close + 1..]), allowed);
    }
    let one = |name: &str| name == "MET" || allowed.contains(name);
    text.split(" OR ").any(|part| part.split(" AND ").all(|name| one(name.trim())))
}

#[test]
fn every_dependency_is_allowed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .current_dir(&root)
        .args(["metadata", "--locked", "--format-version", "1"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let allowed = allowed(&root);
    let packages = metadata["packages"].as_array().unwrap();
    let foreign: Vec<&Value> = packages.iter().filter(|package| !package["source"].is_null()).collect();
    assert!(foreign.len() > 100, "{} dependencies: the reading is broken", foreign.len());
    let registry = &foreign[0]["source"];
    assert!(registry.as_str().is_some_and(|source| source.starts_with("registry+")), "{registry}");
    let wrong: Vec<String> = foreign
        .iter()
        .filter(|package| {
            let licence = package["license"].as_str().unwrap_or_default();
            package["source"] != *registry || !met(licence, &allowed)
        })
        .map(|package| {
            format!(
                "{} {}: {} from {}",
                package["name"], package["version"], package["license"], package["source"]
            )
        })
        .collect();
    assert!(wrong.is_empty(), "not allowed:\n  {}", wrong.join("\n  "));
}

#[test]
fn expressions_are_read_as_they_are_meant() {
    let allowed =
        BTreeSet::from(["MIT".to_owned(), "Zlib".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()]);
    for good in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/GPL-3.0",
        "(GPL-3.0 OR MIT) AND Zlib",
        "Apache-2.0 WITH LLVM-exception OR X",
    ] {
        assert!(met(good, &allowed), "{good}");
    }
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR X) AND Y", "Apache-2.0"] {
        assert!(!met(bad, &allowed), "{bad}");
    }
}
