//! `/devshard/{id}/` and `/devshard/{id}/openapi.json`: a page for people and a description for machines
//! (contract gateway 2.3).

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use super::respond::{self, Answer};

/// Paths below a devshard: method, path, what it does, whether the admin key is needed.
const PATHS: &[(&str, &str, &str, bool)] = &[
    ("get", "/v1/models", "Models that can be asked.", false),
    ("get", "/v1/status", "Nonce, phase, balance and effective timeouts.", false),
    ("post", "/v1/chat/completions", "One chat completion, whole or streamed.", false),
    ("get", "/v1/requests/{request_id}", "Accounting of one request.", false),
    ("get", "/v1/state", "Session, group and host statistics.", true),
    ("get", "/v1/finalize", "The settlement payload, once there is one.", true),
    ("post", "/v1/finalize", "Runs the closing rounds.", true),
    ("get", "/v1/debug/state", "Counts of inferences by status.", true),
    ("get", "/v1/debug/pending", "Entries that wait for the next step.", true),
    ("get", "/v1/debug/inferences", "Every inference by nonce.", true),
    ("get", "/v1/debug/perf", "Performance samples.", true),
    ("get", "/v1/debug/pairwise", "Comparisons of participants.", true),
    ("get", "/v1/debug/signatures", "Signed weight by nonce.", true),
    ("post", "/v1/debug/signatures/collect", "Asks hosts for signatures over a nonce.", true),
    ("post", "/v1/debug/sync-hosts", "Brings pending entries into steps and hosts up to date.", true),
];

/// The page.
#[must_use]
pub fn page(escrow_id: &str) -> Answer {
    let html = format!(
        "<!doctype html>\n<html><head><meta charset=\"utf-8\"><title>devshard {escrow_id}</title></head>\n\
         <body><h1>devshard {escrow_id}</h1>\n\
         <p><a href=\"openapi.json\">Description of its routes</a></p></body></html>\n"
    );
    respond::with_type(StatusCode::OK, "text/html; charset=utf-8", html)
}

/// The description.
#[must_use]
pub fn document() -> Value {
    let mut paths = Map::new();
    for (method, path, summary, admin) in PATHS {
        let security = if *admin { json!([{ "admin": [] }]) } else { json!([]) };
        let operation = json!({
            "summary": summary,
            "security": security,
            "responses": { "200": { "description": "Success." } },
        });
        let entry = paths.entry(*path).or_insert_with(|| json!({}));
        entry[*method] = operation;
    }
    json!({
        "openapi": "3.0.3",
        "info": { "title": "Reference devshard", "version": env!("CARGO_PKG_VERSION") },
        "components": { "securitySchemes": { "admin": { "type": "http", "scheme": "bearer" } } },
        "paths": paths,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_methods_of_a_path_are_described() {
        let document = document();
        let finalize = &document["paths"]["/v1/finalize"];
        assert!(finalize["get"].is_object() && finalize["post"].is_object(), "{finalize}");
        assert_eq!(document["paths"].as_object().unwrap().len(), PATHS.len() - 1);
    }
}
