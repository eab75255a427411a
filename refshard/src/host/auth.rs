//! Who sends: signed POSTs of the gateway, and refusals in the shape of the real host (contract hosts 2.1).

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use super::session::SessionError;
use crate::clock;
use crate::signing::sender_of_request;
use crate::transport::{ERROR_HEADER, ErrorBody, SIGNATURE_HEADER, TIMESTAMP_HEADER};

/// An HTTP refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Status.
    pub status: StatusCode,
    /// Text for `message`.
    pub message: String,
    /// Class for `X-Devshard-Error`; empty for none.
    pub class: &'static str,
}

impl Refusal {
    /// A refusal without a class.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), class: "" }
    }

    /// The answer.
    pub fn response(&self) -> Response<Body> {
        let body = ErrorBody { message: self.message.clone() };
        let mut text = serde_json::to_string(&body).expect("a message is plain data");
        text.push('\n');
        let mut response = Response::new(Body::from(text));
        *response.status_mut() = self.status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if !self.class.is_empty() {
            response.headers_mut().insert(ERROR_HEADER, HeaderValue::from_static(self.class));
        }
        response
    }
}

impl From<&SessionError> for Refusal {
    fn from(error: &SessionError) -> Self {
        let mut refusal = Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
        match error {
            SessionError::Disabled => {
                refusal.status = StatusCode::SERVICE_UNAVAILABLE;
                refusal.class = "requests_disabled";
            }
            SessionError::Decode(_) => refusal.status = StatusCode::BAD_REQUEST,
            _ => {}
        }
        refusal
    }
}

/// Address that signed a POST.
///
/// # Errors
/// A 401 when the headers are missing, malformed, too old, or the signature could not be made by anybody.
pub fn sender(escrow_id: &str, headers: &HeaderMap, body: &[u8]) -> Result<String, Refusal> {
    let unauthorized = |message: &str| Refusal::new(StatusCode::UNAUTHORIZED, message);
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(signature), Some(timestamp)) = (text(SIGNATURE_HEADER), text(TIMESTAMP_HEADER)) else {
        return Err(unauthorized("missing auth headers"));
    };
    let timestamp_s = timestamp.parse().map_err(|_| unauthorized("invalid timestamp"))?;
    sender_of_request(escrow_id, body, signature, timestamp_s, clock::unix_s())
        .map_err(|error| unauthorized(&error.to_string()))
}
