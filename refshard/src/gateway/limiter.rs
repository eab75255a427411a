//! How many requests and input tokens may be in flight, per model (contract gateway 4.3).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::settings::Settings;

/// What a model may use, and what it uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub requests: u64,
    pub tokens: u64,
}

/// Caps in force for one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// `None` = unlimited.
    pub requests: Option<u64>,
    /// `None` = unlimited.
    pub tokens: Option<u64>,
}

/// Why a request was refused, as the label of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Requests,
    Tokens,
}

impl Refused {
    /// Label value.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Requests => "max_concurrent_requests",
            Self::Tokens => "max_input_tokens_in_flight",
        }
    }

    /// Text for the client.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Requests => "rate limit exceeded: too many concurrent requests",
            Self::Tokens => "rate limit exceeded: too many input tokens in flight",
        }
    }
}

/// Counters of all models.
#[derive(Debug, Default)]
pub struct Limiter {
    in_flight: Mutex<BTreeMap<String, Usage>>,
}

/// A place in the limiter; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    limiter: Arc<Limiter>,
    model: String,
    tokens: u64,
}

impl Limiter {
    /// Takes a place.
    ///
    /// # Errors
    /// When a cap is reached.
    pub fn acquire(self: &Arc<Self>, model: &str, tokens: u64, caps: Caps) -> Result<Permit, Refused> {
        let mut in_flight = self.lock();
        let usage = in_flight.entry(model.to_owned()).or_default();
        if caps.requests.is_some_and(|cap| usage.requests >= cap) {
            return Err(Refused::Requests);
        }
        if caps.tokens.is_some_and(|cap| usage.tokens + tokens > cap) {
            return Err(Refused::Tokens);
        }
        usage.requests += 1;
        usage.tokens += tokens;
        drop(in_flight);
        Ok(Permit { limiter: self.clone(), model: model.to_owned(), tokens })
    }

    /// What one model uses.
    #[must_use]
    pub fn usage_of(&self, model: &str) -> Usage {
        self.lock().get(model).copied().unwrap_or_default()
    }

    /// What all models use.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.lock().values().fold(Usage::default(), |sum, usage| Usage {
            requests: sum.requests + usage.requests,
            tokens: sum.tokens + usage.tokens,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Usage>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut in_flight = self.limiter.lock();
        if let Some(usage) = in_flight.get_mut(&self.model) {
            usage.requests -= 1;
            usage.tokens -= self.tokens;
        }
    }
}

/// Caps of a model: its entry, else the general values.
#[must_use]
pub fn caps(settings: &Settings, model: &str) -> Caps {
    let limit = settings.limit_of(model);
    let first = |own: u64, general: u64| [own, general].into_iter().find(|value| *value > 0);
    Caps {
        requests: first(
            limit.map_or(0, |limit| limit.max_concurrent_requests),
            settings.max_concurrent_requests,
        ),
        tokens: first(
            limit.map_or(0, |limit| limit.max_input_tokens_in_flight),
            settings.max_input_tokens_in_flight,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_hold_and_places_come_back() {
        let limiter = Arc::new(Limiter::default());
        let caps = Caps { requests: Some(2), tokens: Some(10) };
        let first = limiter.acquire("m", 4, caps).unwrap();
        let second = limiter.acquire("m", 4, caps).unwrap();
        assert_eq!(limiter.acquire("m", 1, caps).unwrap_err(), Refused::Requests);
        assert!(limiter.acquire("other", 1, caps).is_ok());
        drop(first);
        assert_eq!(limiter.acquire("m", 7, caps).unwrap_err(), Refused::Tokens);
        assert_eq!(limiter.usage(), Usage { requests: 1, tokens: 4 });
        drop(second);
        assert_eq!(limiter.usage(), Usage::default());
    }

    #[test]
    fn the_entry_of_a_model_comes_first_and_zero_is_unlimited() {
        let settings = Settings::defaults("", "", "m");
        assert_eq!(caps(&settings, "m"), Caps { requests: Some(512), tokens: None });
        let patch = serde_json::json!({
            "max_concurrent_requests": 0,
            "model_limits": [{"model_id": "m", "max_concurrent_requests": 10, "max_input_tokens_in_flight": 7}]
        });
        let settings = settings.updated(&patch).unwrap();
        assert_eq!(caps(&settings, "m"), Caps { requests: Some(10), tokens: Some(7) });
        assert_eq!(caps(&settings, "other"), Caps { requests: None, tokens: None });
    }
}
