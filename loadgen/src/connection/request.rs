//! The bytes of a request: one head and one body in one buffer, so that they leave in one write.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write as _;

use evidence::redact::SECRET_LEN_MIN;

use crate::error::LoadgenError;
use crate::target::Target;

/// Environment variable with the client key.
pub const KEY_VARIABLE: &str = "PROOFLOAD_CLIENT_KEY";

/// Headers that decide about framing and connection, and are never a profile's.
const RESERVED: &[&str] =
    &["host", "content-length", "transfer-encoding", "connection", "content-type", "upgrade"];

/// A client key; it goes into the `Authorization` header and nowhere else.
#[derive(Clone)]
pub struct ClientKey(String);

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientKey(…)")
    }
}

impl ClientKey {
    /// Checks a key.
    ///
    /// # Errors
    /// Usage when the key can't stand in a header; the message does not show it.
    pub fn new(text: String) -> Result<Self, LoadgenError> {
        if text.len() < SECRET_LEN_MIN {
            // A shorter one could not be told from innocent text when it is taken out of what a server echoes.
            return Err(LoadgenError::Usage(format!(
                "{KEY_VARIABLE} has less than {SECRET_LEN_MIN} characters"
            )));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(LoadgenError::Usage(format!(
                "{KEY_VARIABLE} holds characters that can't stand in a header"
            )));
        }
        Ok(Self(text))
    }

    /// The key of the environment; an unset or empty variable is no key.
    ///
    /// # Errors
    /// As [`ClientKey::new`].
    pub fn from_env() -> Result<Option<Self>, LoadgenError> {
        match std::env::var(KEY_VARIABLE) {
            Ok(text) if text.is_empty() => Ok(None),
            Ok(text) => Self::new(text).map(Some),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(LoadgenError::Usage(format!("{KEY_VARIABLE} is not valid text")))
            }
        }
    }

    /// The secret text, for redaction of what a server echoes.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }
}

/// Why a name can't be that of a header which loadgen is told to send.
#[must_use]
pub fn refused_header(name: &str) -> Option<String> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        return Some(format!("{name:?} is no header name"));
    }
    let reserved = RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved));
    reserved.then(|| format!("header {name:?} is written by loadgen itself"))
}

/// The part of the head that is the same for all requests of a run.
#[derive(Clone, Debug)]
pub struct HeadTemplate {
    common: Vec<u8>,
}

impl HeadTemplate {
    /// Writes what all requests to `target` share.
    #[must_use]
    pub fn new(target: &Target, key: Option<&ClientKey>) -> Self {
        let mut common = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: proofload/{}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n",
            target.path,
            target.host,
            env!("CARGO_PKG_VERSION")
        );
        if let Some(key) = key {
            common.push_str("Authorization: Bearer ");
            common.push_str(&key.0);
            common.push_str("\r\n");
        }
        Self { common: common.into_bytes() }
    }

    /// The template of a profile's route: its own headers, and one for the key unless they name it already.
    ///
    /// # Errors
    /// Usage when a name or value can't stand in a head; the message shows no value.
    pub fn of_profile(
        target: &Target,
        headers: &BTreeMap<String, String>,
        key: Option<(&str, &str, &ClientKey)>,
    ) -> Result<Self, LoadgenError> {
        let mut template = Self::new(target, None);
        for (name, value) in headers {
            if let Some(why) = refused_header(name) {
                return Err(LoadgenError::Usage(why));
            }
            if !value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte)) {
                return Err(LoadgenError::Usage(format!(
                    "the value of header {name:?} can't stand in a head"
                )));
            }
            template.common.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        if let Some((name, prefix, key)) = key
            && !headers.keys().any(|given| given.eq_ignore_ascii_case(name))
        {
            template.common.extend_from_slice(format!("{name}: {prefix}{}\r\n", key.0).as_bytes());
        }
        Ok(template)
    }

    /// The whole request with another id header, or none.
    pub fn write_as(&self, id: Option<(&str, &str)>, body: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.common);
        if let Some((name, value)) = id {
            for part in [name, ": ", value, "\r\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        }
        let head = write!(out, "Content-Length: {}\r\n\r\n", body.len());
        debug_assert!(head.is_ok(), "a write into memory cannot fail");
        out.extend_from_slice(body);
    }

    /// The whole request. `X-Request-Id` carries our id, which the gateway replaces (contract gateway 3.1).
    pub fn write(&self, request_id: &str, body: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.common);
        let head = write!(out, "X-Request-Id: {request_id}\r\nContent-Length: {}\r\n\r\n", body.len());
        debug_assert!(head.is_ok(), "a write into memory cannot fail");
        out.extend_from_slice(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_buffer() {
        let target = Target {
            host: "127.0.0.1:8081".to_owned(),
            path: "/v1/chat/completions".to_owned(),
            ..Target::default()
        };
        let key = ClientKey::new("sk-test-1234".to_owned()).unwrap();
        assert_eq!(format!("{key:?}"), "ClientKey(…)");
        let mut out = b"old".to_vec();
        HeadTemplate::new(&target, Some(&key)).write("s-1-000000", b"{}", &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8081\r\n"), "{text}");
        assert!(text.contains("\r\nAuthorization: Bearer sk-test-1234\r\n"), "{text}");
        assert!(text.ends_with("\r\nX-Request-Id: s-1-000000\r\nContent-Length: 2\r\n\r\n{}"), "{text}");
        let mut plain = Vec::new();
        HeadTemplate::new(&target, None).write("s", b"", &mut plain);
        assert!(!String::from_utf8(plain).unwrap().contains("Authorization"));
    }

    #[test]
    fn a_key_with_a_line_break_is_refused_and_not_shown() {
        for text in ["", "sk-key", "sk-secret\r\nX: y", "sk secret text"] {
            let error = ClientKey::new(text.to_owned()).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
