//! Answers in the forms of the real gateway: pretty JSON, JSON text under a plain content type, Go's bare
//! 404 (contract gateway 2.2, fixture auth-and-errors).

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

/// Name as Go spells it on the wire is `X-Devshard-Id`; names are case-blind.
pub const DEVSHARD_ID: HeaderName = HeaderName::from_static("x-devshard-id");
/// Id of one request.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const READ_ONLY: HeaderName = HeaderName::from_static("x-devshard-readonly");
const METADATA_ONLY: HeaderName = HeaderName::from_static("x-devshard-metadata-only");
const PLAIN: &str = "text/plain; charset=utf-8";

/// An answer.
pub type Answer = Response<Body>;

/// 200 with two-space JSON.
#[must_use]
pub fn ok(value: &Value) -> Answer {
    let mut text = serde_json::to_string_pretty(value).expect("a JSON value can always be written");
    text.push('\n');
    with_type(StatusCode::OK, "application/json", text)
}

/// The usual error: JSON text, plain content type, newline at the end.
#[must_use]
pub fn error(status: StatusCode, message: &str) -> Answer {
    let mut answer = with_type(status, PLAIN, format!("{}\n", error_body(message)));
    answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// An error of the per-escrow chat handler.
#[must_use]
pub fn json_error(status: StatusCode, body: &Value) -> Answer {
    with_type(status, "application/json", format!("{body}\n"))
}

/// `{"error":{"message":…}}`.
#[must_use]
pub fn error_body(message: &str) -> Value {
    json!({ "error": { "message": message } })
}

/// 404 of the router itself.
#[must_use]
pub fn not_found() -> Answer {
    bare(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// 405 of a handler, not JSON.
#[must_use]
pub fn wrong_method() -> Answer {
    bare(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n")
}

/// 401 of an admin path.
#[must_use]
pub fn invalid_admin_key() -> Answer {
    let body = json!({ "error": {
        "message": "Invalid admin API key.", "type": "invalid_request_error", "code": "invalid_api_key" } });
    with_type(StatusCode::UNAUTHORIZED, "application/json", body.to_string())
}

/// Text of `/metrics`.
#[must_use]
pub fn metrics(text: String) -> Answer {
    with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", text)
}

/// A body of any type.
#[must_use]
pub fn with_type(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// Puts the escrow on an answer, unless an inner layer has named one.
#[must_use]
pub fn of_escrow(mut answer: Answer, escrow_id: &str) -> Answer {
    if let Ok(value) = HeaderValue::from_str(escrow_id) {
        answer.headers_mut().entry(DEVSHARD_ID).or_insert(value);
    }
    answer
}

/// Marks an answer that comes from a session which is not served any more.
#[must_use]
pub fn read_only(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(READ_ONLY, HeaderValue::from_static("1"));
    answer
}

/// Marks an answer that comes from the registry alone.
#[must_use]
pub fn metadata_only(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(METADATA_ONLY, HeaderValue::from_static("1"));
    answer
}

/// Names the request on an answer.
#[must_use]
pub fn of_request(mut answer: Answer, request_id: &str) -> Answer {
    if let Ok(value) = HeaderValue::from_str(request_id) {
        answer.headers_mut().insert(REQUEST_ID, value);
    }
    answer
}

fn bare(status: StatusCode, text: &'static str) -> Answer {
    let mut answer = with_type(status, PLAIN, text);
    answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}
