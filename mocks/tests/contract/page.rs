//! The table of `docs/fidelity.md`, section "Mocks": written with `PROOFLOAD_REGENERATE=1`, else compared.

use std::path::Path;

const BEGIN: &str = "<!-- mocks -->";
const END: &str = "<!-- /mocks -->";

/// Compares the table, or writes it.
pub fn check(table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/fidelity.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let begin = page.find(BEGIN).expect("the page has the begin of the section") + BEGIN.len();
    let end = page.find(END).expect("the page has the end of the section");
    let fresh = format!("{}\n{table}{}", &page[..begin], &page[end..]);
    if std::env::var("PROOFLOAD_REGENERATE").is_ok() {
        std::fs::write(&path, fresh).unwrap();
    } else {
        assert!(page == fresh, "docs/fidelity.md is stale; run with PROOFLOAD_REGENERATE=1");
    }
}
