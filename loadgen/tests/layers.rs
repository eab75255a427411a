//! The layers of the library point one way: protocol and result know none of the others, profile knows those two, the
//! engine knows all three, output knows result and profile, and what runs them knows all.

#![expect(clippy::unwrap_used, reason = "a rule that can't be checked must stop the test")]

use std::path::Path;

const LAYERS: [(&str, &[&str]); 6] = [
    ("protocol", &[]),
    ("result", &[]),
    ("profile", &["protocol", "result"]),
    ("output", &["profile", "result"]),
    ("engine", &["profile", "protocol", "result"]),
    ("run", &["engine", "output", "profile", "protocol", "result"]),
];

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn layers_point_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for (layer, allowed) in LAYERS {
        let mut files = Vec::new();
        sources(&root.join(layer), &mut files);
        for (path, text) in files {
            seen += 1;
            for (other, _) in LAYERS.iter().filter(|(other, _)| *other != layer && !allowed.contains(other)) {
                let used = text.contains(&format!("crate::{other}::"));
                assert!(!used, "{path}: {layer} must not know {other}");
            }
        }
    }
    assert!(seen > 20, "the walk is broken");
}
