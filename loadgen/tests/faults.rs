//! The tables of `docs/loadgen.md` (specification, faults of other tools): every test that they name exists.

#![expect(clippy::unwrap_used, reason = "a table that can't be checked must stop the test")]

use std::collections::BTreeSet;
use std::path::Path;

/// Where the tests are that the table names.
const FOLDERS: [&str; 4] = ["loadgen", "crates", "mocks", "tests"];
/// Shorter words in the column are names of other things.
const NAME_LEN_MIN: usize = 12;

fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let names = text.split("fn ").skip(1).filter_map(|rest| rest.split('(').next());
            found.extend(names.map(str::to_owned));
        }
    }
}

#[test]
fn every_test_in_the_tables_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut known = BTreeSet::new();
    FOLDERS.iter().for_each(|folder| functions(&root.join(folder), &mut known));
    let page = std::fs::read_to_string(root.join("docs/loadgen.md")).unwrap();
    let mut named = 0;
    for heading in ["## The specification", "## Faults of other tools"] {
        let (_, table) = page.split_once(heading).unwrap();
        let (table, _) = table.split_once("\n## ").unwrap();
        for row in table.lines().filter(|line| line.starts_with('|')) {
            let tests = row.trim_end_matches('|').rsplit('|').next().unwrap();
            for name in tests.split('`').skip(1).step_by(2) {
                if name.len() >= NAME_LEN_MIN && !name.contains(['/', '.']) {
                    named += 1;
                    assert!(known.contains(name), "{name} is no test: {row}");
                }
            }
        }
    }
    assert!(named > 120, "only {named} tests were found in the tables");
}
